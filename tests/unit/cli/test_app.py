"""The typer app declares every verb with help and environment twins, and tells failures as the exit table says."""

from __future__ import annotations

import errno
import inspect
import json
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

from opsq import errors
from opsq.cli import app, help_pages, verb_table
from opsq.cli.output.error_report import as_failure, report_error
from opsq.documents.shape import instant, text_or_base64
from opsq.errors import OpsqError, UsageError
from opsq.options.option import GLOBAL, OptionSet, declared

VERBS = [
    full
    for name in verb_table.VERBS
    for full in ([f"{name} {part}" for part in verb_table.GROUPS.get(name, ())] or [name])
]


def test_every_verb_is_declared() -> None:
    core = (
        "start stop restart status submit wait results show list cancel rm reserve read complete fail release extend "
        "explain consume dead"
    )
    assert set(core.split()) <= set(verb_table.VERBS)
    assert set(verb_table.VERBS) >= verb_table.HOT_VERBS
    for name in VERBS:
        assert help_pages.command(name).help, name


def test_every_option_has_help_and_a_variable_of_its_own() -> None:
    for name in VERBS:
        for option in help_pages.command(name).params:
            assert option.help, (name, option.name)
            if option.param_type_name == "option":
                assert option.envvar, (name, option.name)
                long_form = next(flag for flag in option.opts if flag.startswith("--"))
                end = long_form.lstrip("-").replace("-", "_").upper()
                verb = name.upper().replace(" ", "_")
                assert option.envvar in {f"OPSQ_{end}", f"OPSQ_{verb}_{end}"}, (name, option.envvar)


def test_no_two_options_of_a_verb_share_a_name_a_variable_or_a_flag() -> None:
    for name in VERBS:
        options = [option for option in help_pages.command(name).params if option.param_type_name == "option"]
        flags = [flag for option in options for flag in (*option.opts, *option.secondary_opts)]
        assert len(flags) == len(set(flags)), name
        variables = [option.envvar for option in options]
        assert len(variables) == len(set(variables)), name
        records = verb_table.function_of(name).__defaults__ or ()
        counts = [len(record.options) if isinstance(record, OptionSet) else 1 for record in records]
        assert len(declared(verb_table.function_of(name)).options) == sum(counts) + len(GLOBAL), name


def test_version_has_no_variable() -> None:
    assert verb_table.VERSION.variable("") == ""


def test_names_of_other_tools_lead_to_verbs_that_exist() -> None:
    for ours in verb_table.OTHERS_SAY.values():
        assert ours.startswith("--") or ours.split()[0] in verb_table.VERBS


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("resutls", "Did you mean `opsq results`?"),
        ("retry", "It is called `opsq dead requeue` here."),
        ("prune", "It is called `opsq history prune` here."),
        ("qqq", "`opsq --help` lists the verbs."),
    ],
)
def test_unknown_verb_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        app.run([name])
    assert caught.value.hint == hint


def test_every_error_class_is_told_with_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    for code, kind in errors.BY_CODE.items():
        assert report_error(kind("It broke.", hint="Mend it."), ["show"]) == kind.exit_status
        told = capsys.readouterr()
        assert told.out == ""
        if code != "nothing_free":
            assert told.err == "opsq: It broke.\nMend it.\n"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/x"), 6),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 7),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"), 2),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"), 2),
    ],
)
def test_errors_of_the_system_are_users_mistakes_not_bugs(error: Exception, status: int) -> None:
    assert as_failure(error).exit_status == status


def test_failure_as_json_is_one_document(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    status = report_error(OpsqError("It broke.", hint="Mend it."), ["show", "--json"])
    document = json.loads(capsysbinary.readouterr().out)
    assert document == {"error": {"code": "error", "exit": status, "message": "It broke.", "hint": "Mend it."}}


def test_instants_are_rfc_3339() -> None:
    assert instant(1735689600123) == "2025-01-01T00:00:00.123Z"
    assert instant(None) is None


def test_bytes_in_json_are_text_if_they_can_be() -> None:
    assert text_or_base64("é\0".encode()) == {"text": "é\0"}
    assert text_or_base64(b"\xff") == {"base64": "/w=="}


def test_list_of_verbs_says_how_the_help_of_each_begins() -> None:
    """`opsq --help` imports no verb, so what it says of each stands elsewhere too."""
    listed: Any = help_pages.listing()
    assert list(listed.commands) == list(verb_table.VERBS)
    for name, place in verb_table.VERBS.items():
        if name in verb_table.GROUPS:
            assert place.summary == inspect.getdoc(import_module(f"opsq.cli.verbs.{name}"))
            assert list(help_pages.listing(name).commands) == list(verb_table.GROUPS[name])
        else:
            assert place.summary == help_pages._short(help_pages.command(name).help)
        assert (listed.commands[name].short_help, listed.commands[name].rich_help_panel) == (place.summary, place.panel)


def test_list_of_verbs_imports_no_verb() -> None:
    code = "import sys; from opsq.cli.help_pages import listing; listing(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.startswith("opsq.cli.verbs.")]
    assert "rich" not in loaded


@pytest.mark.parametrize("name", VERBS)
def test_verb_imports_no_other_verb(name: str) -> None:
    code = f"import sys; from opsq.cli.verb_table import function_of; function_of({name!r}); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    verbs = {f"opsq.cli.verbs.{verb.replace(' ', '.')}" for verb in VERBS}
    assert verbs & set(loaded) == {f"opsq.cli.verbs.{name.replace(' ', '.')}"}
