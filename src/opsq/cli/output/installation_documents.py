"""The JSON documents of the verbs that start, set up and maintain an installation.

It must not print.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from msgspec import UNSET, UnsetType

from opsq.daemon.audit_file import Act
from opsq.documents.shape import ErrorShape, Shape
from opsq.wire.roles import ROLES

if TYPE_CHECKING:
    from opsq.daemon.tokens_file import TokenEntry


class StartDocument(Shape):
    """`opsq start`, `opsq restart`. `status`: started or already_running; `state` as in `opsq status`."""

    status: str
    pid: int
    socket: str
    state: str


class StopDocument(Shape):
    """`opsq stop`. `status`: stopped or not_running."""

    status: str


class AuditDocument(Shape):
    """`opsq audit`."""

    acts: list[Act]


class TokenShape(Shape):
    """A token that lets clients in over TCP. `created_at`: seconds since 1970."""

    name: str
    roles: list[str]
    created_at: int

    @classmethod
    def from_entry(cls, entry: TokenEntry) -> Self:
        """A token as its file has it."""
        return cls(entry.name, [role for role in ROLES if role in entry.roles], entry.created_at)


class TokensDocument(Shape):
    """`opsq token list`."""

    tokens: list[TokenShape]


class NewTokenDocument(Shape):
    """`opsq token create`. `token` is shown this once."""

    name: str
    roles: list[str]
    token: str


class SettingShape(Shape):
    """A setting, its value, and where that came from."""

    name: str
    value: str | int | float | bool
    source: str


class ConfigDocument(Shape):
    """`opsq config`."""

    settings: list[SettingShape]


class CheckDocument(Shape):
    """`opsq check`; `problems` is empty when all is well, else there is an `error`."""

    problems: list[str]
    error: ErrorShape | UnsetType = UNSET


class BackupDocument(Shape):
    """`opsq backup`."""

    path: str
    bytes: int


class RestoreDocument(Shape):
    """`opsq restore`. `newest_at`: when the newest change was copied, by the clock of the store; null: unknown.

    `former_host` was the owner, last heard of at `former_heard_at`, when its oldest change that was not copied had
    waited for `former_lag_s`; 0: all it had was copied. `owner`: how many owners the queue has had, with this one.
    `is_checked` false: an older opsq wrote it. `start`: the command that starts its daemon.
    """

    state_dir: str
    bytes: int
    newest_at: str | None
    former_heard_at: str
    former_host: str
    former_lag_s: float
    owner: int
    is_checked: bool
    start: str


class VacuumDocument(Shape):
    """`opsq vacuum`."""

    bytes: int


class FindingShape(Shape):
    """One thing that was looked at."""

    check: str
    ok: bool
    detail: str
    advice: str


class DoctorDocument(Shape):
    """`opsq doctor`; there is an `error` when a finding is not ok."""

    findings: list[FindingShape]
    error: ErrorShape | UnsetType = UNSET


class DemoDocument(Shape):
    """`opsq demo`."""

    files: int
    bytes: int
    lines: int
    chunks: int
    elapsed_s: float
    chunks_per_s: float
    is_right: bool


class ExampleShape(Shape):
    """An example. `text`: if it is the only one that was asked for; `path`: where it was copied."""

    name: str
    about: str
    text: str | UnsetType = UNSET
    path: str | UnsetType = UNSET


class ExamplesDocument(Shape):
    """`opsq examples`."""

    examples: list[ExampleShape]


class CompletionDocument(Shape):
    """`opsq completion`."""

    shell: str
    script: str
