"""Every setting: where its value comes from (flag, environment, file, default), and which paths follow from it.

It must do no I/O except reading the two TOML files, and must stay cheap to import: client and daemon compute the socket
path here, alike, at every process start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from opsq import setting_kinds as kind
from opsq.errors import InputUnreadable, UsageError
from opsq.ids import SHARD_MAX
from opsq.paths import SOCKET_PATH_LIMIT_BYTES, default_state_dir, socket_of, user_folder
from opsq.setting_kinds import Kind
from opsq.targets import ON, WEBHOOK, Command, Webhook, merged
from opsq.units import counted

SYSTEM_FILE = "/etc/opsq/opsq.toml"
STRATEGIES = "strategies"
"""The table of named strategies; only files have it, and each name is looked up in the stronger file first."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings with their values; `sources` has for each where the value came from.

    Made by `load`. `SETTINGS` has the meaning, the default and the range of each. `strategies` are unparsed, by name.
    """

    state_dir: str
    socket: str
    socket_mode: int
    address: str
    shard_by: str
    shards: frozenset[int]
    tls_ca_file: str
    tls_client_cert_file: str
    tls_client_key_file: str
    shard: int | None
    listen: str
    listen_force: bool
    tls_cert_file: str
    tls_key_file: str
    tls_client_ca_file: str
    token_file: str
    client_token_file: str
    tokens_file: str
    store: str
    replicate_to: str
    replicate_every_s: float
    replicate_lease_s: float
    ack: str
    in_place_roots: tuple[str, ...]
    durability: str
    allow_network_fs: bool
    frame_limit_bytes: int
    chunk_limit_bytes: int
    connection_limit: int
    log_level: str
    log_bytes: int
    log_count: int
    trace_sql: bool
    drain_s: float
    grace_s: float
    reservation_s: float
    heartbeat_s: float
    heartbeat_misses: int
    max_attempts: int
    max_lost: int
    backoff_base_s: float
    backoff_factor: float
    backoff_max_s: float
    max_backlog_chunks: int
    min_free_bytes: int
    history_days: float
    history_rows: int
    finished_days: float
    event_days: float
    event_rows: int
    restart_lease_s: float
    strategies: dict[str, str]
    on: dict[str, Command]
    webhooks: tuple[Webhook, ...]
    sources: dict[str, str]

    def source(self, name: str) -> str:
        """Where the value of a setting came from: a flag, a variable, a file, or how the default was made."""
        return self.sources[name]

    @property
    def is_durable(self) -> bool:
        """Whether a reply means that its effects survive a power cut."""
        return self.durability == "durable"

    @property
    def is_shared(self) -> bool:
        """Whether the group of the state folder may use the daemon, and with it the content."""
        return bool(self.socket_mode & 0o020)

    @property
    def database_path(self) -> str:
        """The SQLite file."""
        return f"{self.state_dir}/opsq.sqlite"

    @property
    def lock_path(self) -> str:
        """The file whose lock decides whether a daemon runs."""
        return f"{self.state_dir}/opsq.lock"

    @property
    def notify_path(self) -> str:
        """What `opsq notify` has read and has to deliver."""
        return f"{self.state_dir}/notify.sqlite"

    @property
    def log_path(self) -> str:
        """The newest log."""
        return f"{self.state_dir}/opsq.log"

    @property
    def audit_path(self) -> str:
        """What operators did."""
        return f"{self.state_dir}/audit.jsonl"

    def texts(self) -> dict[str, str]:
        """Each setting with its value as one would write it in the file."""
        return {setting.name: setting.kind.write(getattr(self, setting.name)) for setting in SETTINGS}


class Setting(msgspec.Struct, frozen=True):
    """One setting: its name in the file, as flag (`--name-with-dashes`) and in the environment (`OPSQ_NAME`)."""

    name: str
    kind: Kind
    default: Any
    text: str
    is_clients: bool = False
    """Only clients read it: no option of the verbs that start a daemon."""

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def shown_default(self) -> str:
        """The default as pages show it; empty if the text says it, or there is none."""
        return "" if self.default in ("", (), False, None) else str(self.kind.write(self.default))

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "OPSQ_" + self.name.upper()


def load(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    kept: Mapping[str, str] | None = None,
) -> Settings:
    """Find the value of every setting.

    Args:
        flags: values given on the command line, by setting name; None means "not given".
        environ: the environment; default `os.environ`. An empty variable counts as unset. Without an XDG variable in
            it, the folders are those that platformdirs finds, by HOME or for this process.
        kept: what the daemon that is restarted was started with; stronger than files.

    Raises:
        UsageError: a value is not one that the setting takes, a file has an unknown key, or no state folder can be
            determined.
        InputUnreadable: a file exists and cannot be read.
    """
    environ = os.environ if environ is None else environ
    flags = flags or {}
    files = [(path, _read_file(path)) for path in config_paths(environ)]
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for setting in SETTINGS:
        name = setting.name
        for given, source in _candidates(setting, flags, environ, kept or {}, files):
            try:
                values[name] = setting.kind.read(given)
            except ValueError as error:
                raise UsageError(f"{name} from {source}: {error}.") from error
            sources[name] = source
            break
        else:
            values[name], sources[name] = setting.default, "default"
    if not values["state_dir"]:
        values["state_dir"], sources["state_dir"] = default_state_dir(environ)
    state_dir = values["state_dir"]
    if sources["socket"] == "default":
        values["socket"], sources["socket"] = socket_of(state_dir, sources["state_dir"])
    elif len(os.fsencode(values["socket"])) > SOCKET_PATH_LIMIT_BYTES:
        raise UsageError(
            f"The socket path from {sources['socket']} has "
            f"{counted(len(os.fsencode(values['socket'])), 'byte')}, and a Unix"
            f" socket allows {SOCKET_PATH_LIMIT_BYTES}: {values['socket']}",
            hint="Give a shorter path by --socket or OPSQ_SOCKET.",
        )
    for name, file in (("token_file", "token"), ("client_token_file", "client_token"), ("tokens_file", "tokens")):
        values[name] = values[name] or f"{state_dir}/{file}"
    values["store"] = values["store"] or "file://" + f"{state_dir}/content".replace("%", "%25")
    strategies: dict[str, str] = {}
    for path, content in reversed(files):
        own: Any = content.get(STRATEGIES, {})
        strategies |= own
        sources |= dict.fromkeys((f"{STRATEGIES}.{name}" for name in own), path)
    on, webhooks = merged(files, sources)
    return Settings(**values, strategies=strategies, on=on, webhooks=webhooks, sources=sources)


def config_paths(environ: Mapping[str, str] | None = None) -> list[str]:
    """The settings files, the stronger first, whether they exist or not."""
    folder, _ = user_folder("config", os.environ if environ is None else environ)
    return ([f"{folder}/opsq.toml"] if folder else []) + [SYSTEM_FILE]


# --- where values come from ---------------------------------------------------------------------------------


def _candidates(
    setting: Setting,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    kept: Mapping[str, str],
    files: list[tuple[str, dict[str, object]]],
) -> list[tuple[object, str]]:
    """The values given for a setting, the strongest first, each with its source."""
    if flags.get(setting.name) is not None:
        return [(flags[setting.name], setting.flag)]
    if environ.get(setting.variable):
        return [(environ[setting.variable], setting.variable)]
    if setting.name in kept:
        return [(kept[setting.name], f"{setting.flag} of the last start")]
    return [(content[setting.name], path) for path, content in files if setting.name in content]


def _can_be_seen(path: str) -> bool:
    try:
        os.stat(path)
    except PermissionError:
        return False
    return True


def _read_file(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        if isinstance(error, PermissionError) and not _can_be_seen(path):
            return {}  # a home that this process may not enter
        raise InputUnreadable(f"Cannot read the settings in {path}: {error.strerror}.") from error
    import tomllib

    try:
        content = tomllib.loads(text.decode())
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}.") from error
    for key, given in content.items():
        if key in {ON, WEBHOOK}:
            continue
        if key == STRATEGIES:
            if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
                raise UsageError(
                    f"{STRATEGIES} in {path} is not a table of texts.",
                    hint='Write [strategies] and below it fast = "NewestFirst".',
                )
            continue
        if key not in _BY_NAME:
            import difflib

            near = difflib.get_close_matches(key, _BY_NAME, 1, 0.4)
            raise UsageError(
                f"{path} has an unknown setting {key!r}.",
                hint=f"Did you mean {near[0]!r}?" if near else "`opsq config` lists all settings.",
            )
        if _BY_NAME[key].kind in {kind.PATH, kind.OPTIONAL_PATH, kind.PATHS}:
            is_many = isinstance(given, str) and _BY_NAME[key].kind is kind.PATHS
            for one in str(given).split(":") if is_many else given if isinstance(given, list) else [given]:
                if isinstance(one, str) and one and not one.startswith(("/", "~/")):
                    raise UsageError(f"{key} from {path}: {one!r} is not an absolute path.")
    return content


# --- the settings -------------------------------------------------------------------------------------------

_YEARS = 36500.0

SETTINGS: tuple[Setting, ...] = (
    Setting("state_dir", kind.PATH, "", "folder of database, socket, lock, tokens, log and content"),
    Setting("socket", kind.PATH, "", "Unix socket of the daemon; default opsq.sock in the state folder"),
    Setting("socket_mode", kind.MODE, 0o600, "file mode of the socket"),
    Setting(
        "address",
        kind.DAEMON_ADDRESS,
        "",
        "HOST:PORT of a daemon to reach over TCP in place of the socket; with TLS tls://HOST:PORT;"
        " several with commas, or @FILE with one on each line, for shards",
        is_clients=True,
    ),
    Setting(
        "shard_by",
        kind.KEY,
        "",
        "the metadata key whose value says on which shard a submission goes; empty: where there is most room",
        is_clients=True,
    ),
    Setting(
        "shards", kind.SHARDS, frozenset(), "consumers take chunks of these shards only, as in 0-3,7", is_clients=True
    ),
    Setting(
        "tls_ca_file",
        kind.OPTIONAL_PATH,
        "",
        "the CA that signed the certificate of a daemon at a tls:// address",
        is_clients=True,
    ),
    Setting(
        "tls_client_cert_file",
        kind.OPTIONAL_PATH,
        "",
        "this client's certificate, for daemons that require one",
        is_clients=True,
    ),
    Setting("tls_client_key_file", kind.OPTIONAL_PATH, "", "its private key, if not in the same file", is_clients=True),
    Setting(
        "shard",
        kind.optional_count(0, SHARD_MAX),
        None,
        "number of this daemon among the shards of a queue, 0 to 1023, which its file keeps; default that of the file",
    ),
    Setting("listen", kind.ADDRESS, "", "HOST:PORT where the daemon listens on TCP, besides its socket; empty: no TCP"),
    Setting("listen_force", kind.BOOLEAN, False, "allow `listen` without TLS on an address others can reach"),
    Setting("tls_cert_file", kind.OPTIONAL_PATH, "", "the daemon's certificate: `listen` then speaks TLS only"),
    Setting("tls_key_file", kind.OPTIONAL_PATH, "", "its private key, if not in the same file"),
    Setting("tls_client_ca_file", kind.OPTIONAL_PATH, "", "require a certificate signed by this CA from TCP clients"),
    Setting("token_file", kind.PATH, "", "the token that permits everything over TCP; created if missing"),
    Setting("client_token_file", kind.PATH, "", "a token for all producers and consumers over TCP; optional"),
    Setting("tokens_file", kind.PATH, "", "named tokens with their roles, stored as hashes; see opsq token"),
    Setting(
        "store",
        kind.STORE,
        "",
        "where content is stored: file://, s3://, gs:// or az:// URL; default content/ in the state folder",
    ),
    Setting("replicate_to", kind.OPTIONAL_STORE, "", "where the queue is copied to while it is written: as `store`"),
    Setting("replicate_every_s", kind.duration(0.01, 3600), 1.0, "how often what is new is copied"),
    Setting("replicate_lease_s", kind.duration(1, 3600), 30.0, "how long no other daemon may take the replica over"),
    Setting(
        "ack",
        kind.choice("committed", "replicated"),
        "committed",
        "when a submit is acknowledged: after its commit, or once its copy is known to be in the replica",
    ),
    Setting(
        "in_place_roots",
        kind.PATHS,
        (),
        "folders in which consumers read files that other users or machines have submitted in place; default none",
        is_clients=True,
    ),
    Setting(
        "durability",
        kind.choice("durable", "normal"),
        "durable",
        "durable: synced before each reply; normal: a power failure may lose the latest work",
    ),
    Setting(
        "allow_network_fs", kind.BOOLEAN, False, "allow the state folder on a network file system, with slower locking"
    ),
    Setting("frame_limit_bytes", kind.size(1 << 16, 1 << 30), 16 << 20, "maximum size of a protocol frame"),
    Setting("chunk_limit_bytes", kind.size(1, 1 << 40), 64 << 20, "maximum size of a chunk"),
    Setting("connection_limit", kind.count(1, 1_000_000), 10_000, "maximum number of connections"),
    Setting(
        "log_level",
        kind.choice("debug", "info", "warning", "error"),
        "info",
        "log level: debug, info, warning, error",
    ),
    Setting("log_bytes", kind.size(1 << 12, 1 << 40), 10 << 20, "size at which the log is rotated"),
    Setting("log_count", kind.count(1, 1000), 5, "how many rotated logs are kept"),
    Setting("trace_sql", kind.BOOLEAN, False, "log each SQL statement with its cost"),
    Setting("drain_s", kind.duration(0), 30.0, "how long a stopping daemon waits for reserved chunks"),
    Setting("grace_s", kind.duration(0), 10.0, "how long a stopping consumer waits for its programs", is_clients=True),
    Setting("reservation_s", kind.duration(0.1), 600.0, "length of a reservation"),
    Setting("heartbeat_s", kind.duration(0.05, 3600), 5.0, "how often a connection sends a heartbeat"),
    Setting("heartbeat_misses", kind.count(1, 1000), 3, "how many missed heartbeats end a connection"),
    Setting("max_attempts", kind.count(1, 1 << 31), 5, "failures until a chunk is dead"),
    Setting("max_lost", kind.count(1, 1 << 31), 5, "lost consumers until a chunk is dead"),
    Setting("backoff_base_s", kind.duration(0), 1.0, "delay after the first failure of a chunk"),
    Setting("backoff_factor", kind.number(1, 100), 2.0, "factor by which the delay grows with each failure"),
    Setting("backoff_max_s", kind.duration(0), 300.0, "maximum delay after a failure"),
    Setting(
        "max_backlog_chunks",
        kind.count(0, 1 << 53),
        0,
        "maximum number of unfinished chunks; submissions beyond it are refused; 0: no limit",
    ),
    Setting(
        "min_free_bytes",
        kind.size(0, 1 << 50),
        64 << 20,
        "disk space that must stay free; with less, submissions are refused",
    ),
    Setting("history_days", kind.number(0, _YEARS), 30.0, "how many days history is kept"),
    Setting("history_rows", kind.count(0, 1 << 53), 10_000_000, "rows of history that are kept"),
    Setting(
        "finished_days", kind.number(0, _YEARS), 7.0, "how many days finished submissions and their content are kept"
    ),
    Setting("event_days", kind.number(0, _YEARS), 30.0, "how many days events are kept"),
    Setting("event_rows", kind.count(1, 1 << 53), 1_000_000, "events that are kept"),
    Setting(
        "restart_lease_s", kind.duration(0.1), 30.0, "how long a restarted daemon waits for consumers to come back"
    ),
)

_BY_NAME = {setting.name: setting for setting in SETTINGS}
