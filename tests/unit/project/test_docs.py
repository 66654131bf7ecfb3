"""The manual says what the code does.

Verbs, exit statuses, settings, JSON documents and messages are in it, as they are.

It must not run a daemon; whether examples work is proved by tests/acceptance.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import types
import typing
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest

from needs import need
from opsq import errors
from opsq.cli.output import installation_documents
from opsq.cli.spark import spark_documents
from opsq.cli.verb_table import GROUPS, HELP, VERBS, function_of
from opsq.content.manifest import Content
from opsq.documents import daemon, deliveries, events, outbox, queues, schedules, shape, strategies, submissions
from opsq.options.option import declared
from opsq.settings import SETTINGS
from opsq.spark.report import rows
from opsq.strategy.tree import NODES
from opsq.wire import messages
from printed_documents import printed_by

ROOT = Path(__file__).parents[3]
MAN = ROOT / "man"
PAGES = sorted(MAN.glob("opsq*.[157]"))


def plain(text: str) -> str:
    """Roff as the words that a reader sees: no requests, no escapes, no fonts."""
    text = re.sub(r"(?m)^\.(B|I|BR|RB|BI|IB|RI|IR) (.*)$", lambda match: _joined(match[1], match[2]), text)
    text = re.sub(r"(?m)^\.\\\".*$|^\.(TP|PP|SH|SS|TH|EX|EE|IP)\b ?", "", text)
    text = re.sub(r"\\f[BIRP]", "", text)
    for escape, character in {
        "\\-": "-",
        "\\(dq": '"',
        "\\(ha": "^",
        "\\&": "",
        "\\(en": "–",
        "\\ ": " ",
        "\\(mu": "×",
        "\\e": "\\",
    }.items():
        text = text.replace(escape, character)
    return text


def _joined(macro: str, arguments: str) -> str:
    words = [quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|(\S+)', arguments)]
    return (" " if len(macro) == 1 else "").join(words)


def page(name: str) -> str:
    """A page as plain text."""
    return plain((MAN / name).read_text(encoding="utf-8"))


def sections(name: str) -> dict[str, str]:
    """The subsections of a page by title, as roff."""
    parts = re.split(r"(?m)^\.SS (.*)\n", (MAN / name).read_text(encoding="utf-8"))
    return {
        title.strip('"'): re.split(r"(?m)^\.SH ", body)[0] for title, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def entries(body: str) -> list[tuple[str, str]]:
    """The names that stand as `.TP`, `.BR NAME "(what it is)"` in a section, each with what it is."""
    found = re.findall(r'(?m)^\.TP\n\.BR (\S+) "? ?\((.*?)\)"?$', body)
    return [(plain(name), plain(what)) for name, what in found]


# --- verbs and exit statuses ------------------------------------------------------------------------------------------


NAMES = [full for name in VERBS for full in ([f"{name} {part}" for part in GROUPS.get(name, ())] or [name])]


def verbs_with_help() -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Every verb with its help and the help of its options."""
    return [
        (
            name,
            inspect.getdoc(function_of(name)) or "",
            [(each, option.help) for each, option in declared(function_of(name)).options.items()],
        )
        for name in NAMES
    ]


@pytest.mark.parametrize(
    ("name", "help_text", "options"), verbs_with_help(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_verb_and_option_has_help(name: str, help_text: str, options: list[tuple[str, str]]):
    """`opsq VERB --help` leaves nothing unexplained."""
    assert help_text.strip().endswith(".")
    assert [option for option, text in options if not text.strip()] == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_in_the_readme_and_has_a_page_that_opsq_1_names(verb: str):
    """Nobody has to read the code to find a verb."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"\bopsq {verb}\b", readme), f"README.md does not name `opsq {verb}`"
    assert (MAN / f"opsq-{verb}.1").is_file()
    assert f"opsq-{verb}(1)" in page("opsq.1")


def test_readme_has_the_table_of_exit_statuses():
    """That of the code, from which the manual has its own."""
    statuses = {str(error.exit_status) for error in errors.BY_CODE.values()}
    assert statuses | {"0", "128+n"} == set(errors.EXITS)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = {}
    for statuses, what in re.findall(r"(?m)^\| ([0-9n+, ]+) \| (.*) \|$", readme):
        names = statuses.split(", ")
        rows |= dict(zip(names, what.split("; ") if len(names) > 1 else [what], strict=True))
    assert rows == errors.EXITS


def test_every_strategy_is_in_the_manual():
    """What `explain` and `consume` accept can be looked up."""
    for node in NODES:
        assert re.search(rf"(?m)^{node}\b", page("opsq.1")), node


def test_at_least_once_is_said_in_readme_man_page_and_help():
    """Nobody is to believe in exactly once."""
    for text in ((ROOT / "README.md").read_text(encoding="utf-8"), page("opsq.1"), HELP):
        assert "at least once" in text.lower()


def test_manual_says_that_order_affects_only_what_is_handed_out_next():
    """The manual promises no pre-emption."""
    assert "nothing is pre-empted" in page("opsq.1")


def test_manual_says_what_a_power_cut_may_lose():
    """The policy of syncing is in the manual."""
    assert "power failure" in page("opsq.toml.5")


@pytest.mark.parametrize(
    ("lead", "name", "there"),
    [
        ("opsq schedule add nightly", "opsq-schedule.1", "30 2 * * *"),
        ("`--retry-on`", "opsq-consume.1", "--retry-on"),
        ("opsq limit customer=acme --concurrency 5", "opsq-limit.1", "KEY[=VALUE]"),
        ('opsq explain "$id"                        # why is this not running?', "opsq-explain.1", "ID"),
        ("man opsq-admin` .* move,", "opsq-admin.7", "MOVE"),
        ("man opsq-admin` .* restore,", "opsq-admin.7", "RESTORE"),
        ("man opsq-admin` .* upgrade and go back", "opsq-admin.7", "UPGRADE"),
        ("man opsq-admin` .* one queue of a dedicated user", "opsq-admin.7", "useradd --system"),
        ("man opsq-admin` .* several machines", "opsq-admin.7", "SEVERAL MACHINES"),
        ("man opsq-admin` .* delete old history", "opsq-admin.7", "opsq history prune --older-than"),
    ],
)
def test_readme_leads_in_one_step_to_what_people_look_for(lead: str, name: str, there: str):
    """To run nightly, retry some statuses, limit one customer, find out why nothing runs, and administer."""
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    pattern = re.sub(r"\\ +", " ", re.escape(" ".join(lead.split()))).replace(r"\.\*", "[^.]*")
    assert re.search(pattern.replace("\\ ", " "), readme), lead
    assert there in page(name) or there in (MAN / name).read_text(encoding="utf-8"), there


# --- settings ---------------------------------------------------------------------------------------------------------


def test_every_setting_is_in_its_page_with_default_and_variable_and_no_other():
    """opsq.toml(5) is the table of settings."""
    told = {name: what for name, what in entries((MAN / "opsq.toml.5").read_text(encoding="utf-8")) if "OPSQ_" in what}
    assert list(told) == [setting.name for setting in SETTINGS]
    for setting in SETTINGS:
        _, *facts = told[setting.name].split("; ")
        default = setting.kind.write(setting.default) if setting.default not in ("", (), {}, frozenset()) else ""
        assert facts == ([f"default {default}"] if default else []) + [setting.variable], setting.name


def test_page_says_which_settings_only_clients_read():
    """They are no options of `opsq start`."""
    blocks = re.split(r"(?m)^\.TP$", (MAN / "opsq.toml.5").read_text(encoding="utf-8"))
    told = {block.split()[1] for block in blocks if "OPSQ_" in block and "For clients only" in block}
    assert told == {setting.name for setting in SETTINGS if setting.is_clients}


# --- JSON -------------------------------------------------------------------------------------------------------------

JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def json_type(annotation: Any) -> str:
    """A type as opsq-json(7) names it."""
    if annotation in JSON_TYPES:
        return JSON_TYPES[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is list:
        return f"array of {json_type(arguments[0])}"
    if origin is dict:
        return f"object of {json_type(arguments[1])}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join("absent" if each is msgspec.UnsetType else json_type(each) for each in arguments)
    return str(annotation.__name__)


SHAPES = list(
    dict.fromkeys(
        cls
        for module in (
            shape,
            submissions,
            daemon,
            installation_documents,
            queues,
            strategies,
            schedules,
            events,
            outbox,
            deliveries,
            spark_documents,
            rows,
        )
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, msgspec.Struct) and cls is not shape.Shape
    )
)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_every_field_of_every_json_shape_is_in_its_page(shape: type[msgspec.Struct]):
    """opsq-json(7) has each document and part, with its fields in order and their types."""
    body = sections("opsq-json.7")[shape.__name__]
    assert entries(body) == [(field.name, json_type(field.type)) for field in msgspec.structs.fields(shape)]


@pytest.mark.parametrize(
    "shape", [cls for cls in SHAPES if cls.__name__.endswith("Document")], ids=lambda cls: cls.__name__
)
def test_example_has_its_fields_in_their_order(shape: type[msgspec.Struct]):
    """As they are printed."""
    [example] = re.findall(r"(?s)^\.EX\n(.*?)^\.EE", sections("opsq-json.7")[shape.__name__], re.MULTILINE)
    names = [name for name in shape.__struct_fields__ if name in (found := msgspec.json.decode(plain(example)))]
    assert list(found) == names


@pytest.mark.parametrize("verb", NAMES)
def test_page_names_every_verb_with_each_document_that_it_prints(verb: str):
    """Where a document is described, all verbs that print it are named."""
    assert re.search(rf"\bopsq {verb}\b", page("opsq-json.7"))
    for document in printed_by(verb):
        about = plain(sections("opsq-json.7")[document].partition(".EX")[0])
        assert f"opsq {verb}" in " ".join(about.split()), document


def test_page_describes_no_json_shape_that_is_not_there():
    """What was renamed does not stay behind."""
    assert set(sections("opsq-json.7")) == {shape.__name__ for shape in SHAPES}


@pytest.mark.parametrize(
    "shape", [shape for shape in SHAPES if shape.__name__.endswith("Document")], ids=lambda shape: shape.__name__
)
def test_example_of_a_json_document_is_one(shape: type[msgspec.Struct]):
    """Each document has an example with no field that it does not have."""
    body = sections("opsq-json.7")[shape.__name__]
    [example] = re.findall(r"(?s)^\.EX\n(.*?)^\.EE", body, re.MULTILINE)
    document = msgspec.json.decode(plain(example))
    msgspec.convert(document, shape, strict=True)
    assert _unknown_fields(document, shape) == []


def _unknown_fields(document: Any, annotation: Any) -> list[str]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct) and isinstance(document, dict):
        known = {field.name: field.type for field in msgspec.structs.fields(annotation)}
        return [name for name in document if name not in known] + [
            unknown
            for name, part in document.items()
            if name in known
            for unknown in _unknown_fields(part, known[name])
        ]
    if isinstance(document, list) and get_origin(annotation) is list:
        return [unknown for part in document for unknown in _unknown_fields(part, get_args(annotation)[0])]
    return []


# --- protocol ---------------------------------------------------------------------------------------------------------


def wire_type(annotation: Any) -> str:
    """A type as opsq-protocol(7) names it, with its limits."""
    if get_origin(annotation) is Annotated:
        inner, meta = get_args(annotation)
        return wire_type(inner) + _limits(meta)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is list:
        return f"array of {wire_type(arguments[0])}"
    if origin is dict:
        return f"map of {wire_type(arguments[0])} to {wire_type(arguments[1])}"
    if origin is tuple:
        return f"array [{', '.join(map(wire_type, arguments))}]"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(wire_type, arguments))
    if origin is typing.Literal:
        return " or ".join(arguments)
    if annotation is msgspec.Raw:
        return "any"
    return {**JSON_TYPES, float: "float", bytes: "bytes", type(None): "nil"}.get(annotation) or str(annotation.__name__)


def _limits(meta: msgspec.Meta) -> str:
    if meta.pattern is not None:
        return " that is a key" if "/" not in meta.pattern else f" that is an absolute path of up to {meta.max_length}"
    parts = []
    if meta.ge is not None:
        parts.append(f"from {_number(meta.ge)}")
    if meta.gt is not None:
        parts.append(f"above {_number(meta.gt)}")
    if meta.le is not None:
        parts.append(f"to {_number(meta.le)}")
    if meta.lt is not None:
        parts.append(f"below {_number(meta.lt)}")
    if meta.min_length is not None and meta.min_length == meta.max_length:
        parts.append(f"of length {meta.min_length}")
    elif meta.max_length is not None:
        parts.append(f"of length {meta.min_length or 0} to {meta.max_length}")
    return f" {' '.join(parts)}"


def _number(number: float) -> str:
    powers = {
        1 << 63: "2^63",
        -(1 << 63): "-2^63",
        (1 << 63) - 1: "2^63-1",
        1 << 57: "2^57",
        1 << 24: "2^24",
        1 << 20: "2^20",
        253_370_764_800_000: "the year 9999",
        messages.RATE_MIN_PER_S: "one in 30 days",
        1 << 40: "2^40",
        1 << 31: "2^31",
        1e9: "10^9",
    }
    return powers.get(number) or str(number)


STRUCTS = [
    cls
    for cls in vars(messages).values()
    if isinstance(cls, type) and issubclass(cls, messages.Record | messages.Message) and not cls.__subclasses__()
]
REQUESTS, REPLIES = get_args(messages.Request), get_args(messages.Reply)


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_field_of_every_message_is_in_the_protocol(struct: type[msgspec.Struct]):
    """opsq-protocol(7) has each message and part, with its fields in the order of the wire, their types and limits."""
    body = sections("opsq-protocol.7")[struct.__name__]
    hints = typing.get_type_hints(struct, vars(messages), include_extras=True)
    assert entries(body.partition("Answers:")[0]) == [
        (name, wire_type(hints[name])) for name in struct.__struct_fields__
    ]


def test_protocol_describes_no_message_that_is_not_there():
    """What was renamed does not stay behind."""
    described = {title for title in sections("opsq-protocol.7") if re.fullmatch(r"[A-Z][A-Za-z]+", title)}
    assert described == {struct.__name__ for struct in STRUCTS}


@pytest.mark.parametrize("request_type", REQUESTS, ids=lambda struct: struct.__name__)
def test_protocol_names_the_replies_of_every_request(request_type: type[msgspec.Struct]):
    """Each request names the replies that its docstring promises, or says that it has none, and why errors come."""
    _, mark, answers = sections("opsq-protocol.7")[request_type.__name__].partition("Answers:")
    promised = set(re.findall(r"[A-Z]\w+", " ".join(re.findall(r"→ ([^.;]+)", request_type.__doc__ or ""))))
    promised &= {reply.__name__ for reply in REPLIES}
    assert bool(mark) == ("id" in request_type.__struct_fields__)
    assert promised <= set(re.findall(r"[A-Za-z]+", answers))
    codes = re.findall(r"(?m)^\.BR ErrorReply \" (\w+)\"$", answers)
    assert set(codes) <= set(errors.BY_CODE), codes


def codes_of(text: str) -> list[tuple[str, int]]:
    """The codes that a page explains, each with its exit status."""
    return [(name, int(what.removeprefix("exit "))) for name, what in entries(text) if re.fullmatch(r"exit \d+", what)]


def test_every_code_of_an_error_is_explained_with_its_exit_status():
    """In the page of the JSON that has it, to which the page of the protocol leads."""
    assert codes_of((MAN / "opsq-json.7").read_text(encoding="utf-8")) == [
        (code, error.exit_status) for code, error in errors.BY_CODE.items()
    ]
    assert "ERROR CODES of opsq-json(7)" in " ".join(page("opsq-protocol.7").split())
    told = codes_of((MAN / "opsq-protocol.7").read_text(encoding="utf-8"))
    assert set(told) <= {(code, error.exit_status) for code, error in errors.BY_CODE.items()}


@pytest.mark.parametrize("room", ["queue", "strategy", "wire"])
def test_protocol_names_every_code_that_the_engine_answers_with(room: str):
    """What these rooms raise reaches a client."""
    codes = {error.__name__: code for code, error in errors.BY_CODE.items()}
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src" / "opsq" / room).rglob("*.py")]
    raised = {codes[name] for text in texts for name in re.findall(r"\b([A-Z]\w+)\(", text) if name in codes}
    assert len(raised) > 0
    assert {code for code in raised if not re.search(rf"\b{code}\b", page("opsq-protocol.7"))} == set()


def test_protocol_has_every_field_of_the_description_of_content():
    """In the order of the array."""
    told = re.findall(r"then: the folder .*?\);\s(.*?)\.\n", page("opsq-protocol.7"), re.DOTALL)
    assert re.split(r";\s", told[0]) == list(Content.__struct_fields__[1:])


# --- pages ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def man() -> str:
    """The program man."""
    return need("man")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_page_is_clean_roff(path: Path, man: str):
    """The program man shows each page without a warning."""
    # macOS has another man, without a way to warn; there mandoc itself is asked.
    command = (
        [man, "--warnings", "-l", str(path)]
        if "man-db" in _version(man)
        else ["mandoc", "-Tlint", "-W", "warning", str(path)]
    )
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "100"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout or command[0] == "mandoc"


def _version(man: str) -> str:
    done = subprocess.run([man, "--version"], capture_output=True, text=True)
    return "man-db" if re.match(r"man \d", done.stdout) else done.stdout


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_page_points_only_to_pages_that_are_there(path: Path):
    """No reference leads nowhere."""
    foreign = {"chgrp(1)", "cron(8)", "tr(1)", "chmod(1)", "sqlite3(1)", "ssh(1)"}
    found = set(re.findall(r"\b([a-z][a-z0-9.-]*\([1-8]\))", page(path.name))) - foreign
    assert {reference for reference in found if not (MAN / re.sub(r"\((\d)\)", r".\1", reference)).is_file()} == set()
