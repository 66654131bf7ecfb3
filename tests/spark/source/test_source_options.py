"""Options of `format("opsq")`: names without case, values with their units, errors name the option.

A token never shown.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from opsq.client.core.new_submission import SubmissionOptions, new_submission
from opsq.errors import UsageError
from opsq.options.option import options
from opsq.options.submission_options import Rules
from opsq.spark.formats.schemas import quoted
from opsq.spark.notebook import _text, _write_text, named_options
from opsq.spark.source.rule_options import RULES, camel_case, keyword_option, rules_as_options
from opsq.spark.source.source_options import (
    METADATA_COLUMNS,
    parse_chunks,
    parse_read,
    parse_write,
    reads_chunks,
)
from opsq.wire.messages import Backoff, Dependency


def test_write_without_options_cuts_parquet_by_bytes():
    found = parse_write({})
    assert (found.chunk_format, found.rows_per_chunk, found.bytes_per_chunk) == ("parquet", None, None)
    assert found.rules == {}


def test_write_options_are_read_in_any_case():
    found = parse_write(
        {"ROWSPERCHUNK": "100", "chunkformat": "JSONL", "idempotencyKey": "nightly", "Priority": "-3", "onDead": "keep"}
    )
    assert (found.rows_per_chunk, found.bytes_per_chunk, found.chunk_format) == (100, None, "jsonl")
    assert found.rules == {"idempotency_key": "nightly", "priority": -3, "on_dead": "keep"}
    assert parse_write({"Title": " Of July "}).rules == {"title": "Of July"}
    with pytest.raises(UsageError, match="300 bytes"):
        parse_write({"title": "x" * 300})


def test_traceparent_is_one_of_w3c():
    text = f"00-{'1' * 32}-{'2' * 16}-01"
    assert parse_write({"traceparent": text}).traceparent == (text, "")
    with pytest.raises(UsageError, match="traceparent cannot be '00-1'"):
        parse_write({"traceparent": "00-1"})


def test_sizes_and_durations_have_units():
    found = parse_write({"bytesPerChunk": "64K", "expires": "2h", "reservation": "90", "waitForRoom": "5m"})
    assert (found.bytes_per_chunk, found.wait_for_room) == (65536, 300.0)
    assert found.rules == {"expires_s": 7200.0, "reservation_s": 90.0}
    assert [parse_write({"waitForRoom": text}).wait_for_room for text in ("true", "False")] == [True, False]


def test_metadata_values_are_integers_or_text_as_everywhere():
    found = parse_write(
        {"metadata": '{"Tenant": "acme", "run": 7}', "meta.part": "12", "meta.code": '"12"', "meta.word": "a b"}
    )
    assert found.rules["metadata"] == {"Tenant": "acme", "run": 7, "part": 12, "code": "12", "word": "a b"}


def test_json_keeps_the_case_of_keys_and_names_of_options_do_not():
    assert parse_write({"metadata": '{"Tenant": "acme", "RUN": 7}'}).rules["metadata"] == {"Tenant": "acme", "RUN": 7}
    assert parse_write({"META.Tenant": "acme"}).rules["metadata"] == {"tenant": "acme"}


@pytest.mark.parametrize("key", ["Tenant", "tenant"])
def test_key_in_both_options_is_refused(key: str):
    """Whoever writes meta.Tenant beside {"Tenant": …} means one key, and would get two."""
    with pytest.raises(UsageError, match=f"The metadata has {key} twice: in the option metadata and as meta.tenant"):
        parse_write({"metadata": f'{{"{key}": "acme"}}', "meta.Tenant": "zeta"})


def test_write_takes_all_that_a_submission_can_be_given():
    """One table says what a submission can be given, whoever submits; an option added there is one of a write."""
    given = {
        "metadata": '{"tenant": "acme"}',
        "title": "Of July",
        "priority": "-3",
        "maxAttempts": "7",
        "maxLost": "2",
        "onDead": "keep",
        "backoff": "1s,2,5m",
        "weight": "tenant=2, kind=0.5",
        "delay": "1h",
        "at": None,
        "after": "7:ended, batch=7",
        "onFailedDependency": "run",
        "expires": "2h",
        "unique": "u",
        "uniqueUntil": "start",
        "idempotencyKey": None,
        "keep": None,
        "reservation": "90",
    }
    names = [option.flags[-1] for option in options(Rules).options.values()]
    assert [camel_case(name.removeprefix("--").replace("-", "_")) for name in names] == list(given)
    assert parse_write({name: text for name, text in given.items() if text is not None}).rules == {
        "after": [Dependency(7, "ended"), Dependency(key="batch", value=7)],
        "on_failed_dependency": "run",
        "metadata": {"tenant": "acme"},
        "title": "Of July",
        "priority": -3,
        "max_attempts": 7,
        "max_lost": 2,
        "on_dead": "keep",
        "backoff": Backoff(1.0, 2.0, 300.0),
        "weights": {"tenant": 2.0, "kind": 0.5},
        "delay_s": 3600.0,
        "expires_s": 7200.0,
        "unique_key": "u",
        "unique_until": "start",
        "reservation_s": 90.0,
    }
    assert parse_write({"at": "@1000", "idempotencyKey": "k", "keep": "1d"}).rules == {
        "not_before_at": 1_000_000,
        "idempotency_key": "k",
        "idempotency_keep_s": 86400.0,
    }


def test_rules_of_a_submission_are_the_same_as_options_of_a_write():
    rules = Rules(
        metadata=["tenant=acme", "run=7"],
        title="Of July",
        priority=-3,
        max_lost=2,
        on_dead="keep",
        backoff=Backoff(1.5, 2.0, 300.0),
        weight=["tenant=2", "run=0.5"],
        not_before_at=32_503_680_000_123,
        idempotency_key="k",
        keep_s=90.0,
        reservation_s=0.5,
    )
    assert parse_write(rules_as_options(rules)).rules == rules.as_keywords()
    other = Rules(delay_s=3600.0, expires="2h", unique="u", unique_until="start")
    assert parse_write(rules_as_options(other)).rules == {
        name: value for name, value in other.as_keywords().items() if value != {}
    }


def test_rules_with_unusual_values_are_the_same_as_options_of_a_write():
    given = {
        "metadata": ["tenant=a,b", 'code="12"'],
        "title": 'Of "July", [last]',
        "priority": -3,
        "max_attempts": 7,
        "max_lost": 2,
        "on_dead": "keep",
        "backoff": Backoff(1e-5, 1.5, 0.1 + 0.2),
        "weight": ["tenant=2", "code=0.001"],
        "delay_s": 1e-5,
        "not_before_at": 4_102_444_801_001,
        "after": ["7:ended", 'note="a,b"', 'text="[1"'],
        "on_failed": "run",
        "expires": "2999-01-01T00:00Z",
        "unique": " [k], {k} ",
        "unique_until": "start",
        "idempotency_key": " k,k ",
        "keep_s": 1e-7,
        "reservation_s": 1 / 3,
    }
    assert list(given) == list(Rules._fields)
    for without in (("not_before_at", "idempotency_key", "keep_s"), ("delay_s", "unique", "unique_until")):
        rules = Rules(**{name: value for name, value in given.items() if name not in without})
        assert parse_write(rules_as_options(rules)).rules == rules.as_keywords()


@pytest.mark.parametrize("milliseconds", [1001, 1_735_689_600_001, 4_102_444_800_003])
def test_instant_of_a_rule_keeps_its_milliseconds(milliseconds: int):
    rules = Rules(not_before_at=milliseconds)
    assert parse_write(rules_as_options(rules)).rules == {"not_before_at": milliseconds}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("after", [7, 8], [Dependency(7), Dependency(8)]),
        ("after", ['note="a,b"', "8:ended"], [Dependency(key="note", value="a,b"), Dependency(8, "ended")]),
        (
            "after",
            {"note": "a,b", "code": "12"},
            [Dependency(key="note", value="a,b"), Dependency(key="code", value="12")],
        ),
        ("weight", {"Tenant": 2, "run": 0.5}, {"Tenant": 2.0, "run": 0.5}),
        ("backoff", (1e-5, 2, 300), Backoff(1e-5, 2.0, 300.0)),
        ("delay", 1e-5, 1e-5),
    ],
)
def test_values_of_python_are_options_of_a_write(name: str, value: object, words: object):
    [found] = (found for key, found in parse_write({name: _write_text(name, value)}).rules.items() if key != "metadata")
    assert found == words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"after": "[1.5]"}, "The option after cannot be '[1.5]'"),
        ({"weight": "[tenant"}, "The option weight cannot be '[tenant'"),
        ({"maxLost": "0"}, "maxLost 0: give a number from 1 to 2147483648"),
        ({"backoff": "1s,2,3,4"}, "backoff 1s,2,3,4: write BASE,FACTOR,MAX"),
        ({"uniqueUntil": "start"}, "uniqueUntil needs unique"),
        ({"delay": "1m", "at": "@9999999999"}, "delay and at cannot be combined"),
        ({"unique": "a", "idempotencyKey": "b"}, "unique and idempotencyKey cannot be combined"),
        ({"delay": "2h", "expires": "1h"}, "expires 1h: no chunk is reserved before delay"),
        ({"weight": "tenant"}, "weight tenant: write KEY=N"),
        ({"rowPerChunk": "1"}, "'rowperchunk' is not a known option of a write. Did you mean rowsPerChunk?"),
        ({"colour": "red"}, "'colour' is not a known option of a write. Known are"),
        ({"resultFormat": "csv"}, "'resultformat' is for a read, not for a write"),
        ({"rowsPerChunk": "0"}, "rowsPerChunk cannot be '0': it must be at least 1"),
        ({"rowsPerChunk": "many"}, "rowsPerChunk cannot be 'many': it is not a whole number"),
        ({"bytesPerChunk": "1 parsec"}, "bytesPerChunk cannot be '1 parsec'"),
        ({"rowsPerChunk": "5", "bytesPerChunk": "5"}, "cannot be combined"),
        ({"chunkFormat": "xml"}, "chunkFormat cannot be 'xml'. It may be parquet, arrow, jsonl, csv, text"),
        ({"path": "/tmp/x"}, "save() takes no path"),
        ({"metadata": "tenant=acme"}, "metadata cannot be 'tenant=acme'"),
        ({"metadata": '{"run": 1.5}'}, "metadata cannot be"),
        ({"meta.a": '"open'}, "is not a JSON string"),
        ({"stateDir": "/a", "address": "b:1"}, "stateDir and address cannot be combined"),
        ({"idempotencyKey": ""}, "idempotency_key is not possible"),
    ],
)
def test_wrong_write_option_is_refused_by_name(options: dict[str, str], message: str):
    with pytest.raises(UsageError) as refused:
        parse_write(options)
    assert message in str(refused.value)


def test_read_options_are_read():
    found = parse_read(
        {"path": "12", "columns": "a, b", "metadataColumns": "true", "deadChunks": "skip", "resultFormat": "Arrow"}
    )
    assert (found.submission, found.columns, found.metadata_columns) == ("12", ("a", "b"), METADATA_COLUMNS)
    assert (found.skips_dead, found.result_format) == (True, "arrow")


def test_column_name_with_a_comma_is_written_as_json():
    assert parse_read({"path": "1", "columns": '["a,b", "c"]'}).columns == ("a,b", "c")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "No submission is named"),
        ({"path": "1", "submission": "2"}, "Two submissions are named: 1 and 2"),
        ({"path": "1", "metadataColumns": "_chunks"}, "'_chunks' is not a known metadata column. Did you mean _chunk?"),
        ({"path": "1", "columns": "a,a"}, "columns cannot be 'a,a'"),
        ({"path": "1", "mode": "chunks"}, "only be read as a stream"),
        ({"path": "1", "mode": "rows"}, "mode cannot be 'rows'. It may be results, chunks"),
        ({"path": "1", "consumer": "n"}, "'consumer' is for a stream of chunks, not for a read"),
        ({"path": "1", "rowsPerChunk": "1"}, "'rowsperchunk' is for a write, not for a read"),
        ({"path": "1", "meta.x": "1"}, "'meta.x' is not a known option of a read"),
    ],
)
def test_wrong_read_option_is_refused_by_name(options: dict[str, str], message: str):
    with pytest.raises(UsageError) as refused:
        parse_read(options)
    assert message in str(refused.value)


def test_stream_of_chunks_needs_a_name_and_nothing_else():
    found = parse_chunks({"mode": "CHUNKS", "consumer": "nightly"})
    assert (found.consumer, found.strategy, found.lease_s, found.max_chunks_per_trigger) == (
        "nightly",
        "Random",
        3600.0,
        1000,
    )
    assert (found.chunk_format, found.columns, found.metadata_columns, found.chunks_per_partition) == (
        None,
        None,
        (),
        None,
    )
    given = {
        "Consumer": "n",
        "STRATEGY": "OldestFirst",
        "lease": "2d",
        "chunkformat": "Binary",
        "maxChunksPerTrigger": "7",
    }
    found = parse_chunks({"mode": "chunks", "metadataColumns": "_chunk", **given})
    assert (found.strategy, found.lease_s, found.chunk_format, found.max_chunks_per_trigger) == (
        "OldestFirst",
        172800.0,
        "binary",
        7,
    )
    assert found.metadata_columns == ("_chunk",)


def test_mode_is_told_in_any_case():
    assert [reads_chunks(options) for options in ({"MODE": " Chunks"}, {"mode": "results"}, {})] == [True, False, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "The option consumer is missing"),
        ({"consumer": "n" * 256}, "consumer cannot be 'nnn"),
        ({"consumer": "n", "lease": "0"}, "lease cannot be '0': it must be at least 1s"),
        ({"consumer": "n", "lease": "soon"}, "lease cannot be 'soon'"),
        ({"consumer": "n", "path": "12"}, "load() takes no id here"),
        ({"consumer": "n", "submission": "12"}, "'submission' is for a read, not for a stream of chunks"),
        (
            {"consumer": "n", "consumers": "12"},
            "'consumers' is not a known option of a stream of chunks. Did you mean consumer?",
        ),
        ({"consumer": "n", "maxChunksPerTrigger": "0"}, "maxChunksPerTrigger cannot be '0'"),
    ],
)
def test_wrong_option_of_a_stream_of_chunks_is_refused_by_name(options: dict[str, str], message: str):
    with pytest.raises(UsageError) as refused:
        parse_chunks({"mode": "chunks", **options})
    assert message in str(refused.value)


def test_token_comes_from_its_file_and_is_never_shown(tmp_path: Path):
    (tmp_path / "token").write_text("s3cret-token\n")
    found = parse_write({"address": "host:1", "tokenFile": str(tmp_path / "token")})
    assert found.daemon.token == "s3cret-token"
    assert "s3cret-token" not in repr(found) + str(found) + f"{found.daemon}"


def test_missing_token_file_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match="cannot be read"):
        parse_write({"tokenFile": str(tmp_path / "none")})


def test_names_of_columns_are_handed_on_whatever_is_in_them():
    assert [quoted(name) for name in ("a", "a`b", "c.d")] == ["`a`", "`a``b`", "`c.d`"]
    assert parse_read({"path": "1", "columns": _text(["c, d", "a`b"])}).columns == ("c, d", "a`b")


EVERYTHING: SubmissionOptions = {
    "metadata": {"Tenant": "acme", "run": 7, "text": "7"},
    "priority": -1,
    "max_attempts": 2,
    "max_lost": 3,
    "backoff": (1.0, 2.0, 300.0),
    "on_dead": "keep",
    "not_before_at": dt.datetime(2100, 1, 1, tzinfo=dt.UTC),
    "expires_at": 4_102_531_200_123,
    "unique_key": "nightly, run",
    "unique_until": "start",
    "reservation_s": 30.5,
    "weights": {"Tenant": 2.5},
    "title": "Of July",
    "after": [252965017215827968, (252965017215827969, "ended"), {"batch": 7}],
    "on_failed_dependency": "run",
}
OTHERWISE: SubmissionOptions = {
    "delay_s": 90.5,
    "expires_s": 7200.0,
    "idempotency_key": "july",
    "idempotency_keep_s": 86400.0,
    "backoff": Backoff(0.5, 2.0, 8.0),
    "metadata": None,
}


@pytest.mark.parametrize("given", [EVERYTHING, OTHERWISE])
def test_keywords_of_a_submission_mean_in_spark_what_they_mean_elsewhere(given: SubmissionOptions):
    rules = parse_write(named_options(**given)).rules
    assert new_submission(bytes(16), b"", 0, **rules) == new_submission(bytes(16), b"", 0, **given)


def test_one_record_names_what_a_submission_can_be_given_by_python_the_shell_and_spark():
    record = SubmissionOptions.__annotations__.keys()
    assert EVERYTHING.keys() | OTHERWISE.keys() == record
    assert {keyword_option(name, (EVERYTHING | OTHERWISE)[name])[0] for name in record} == RULES.keys()
    said = Rules(metadata=["a=1"], weight=["a=2"], after=["a=1"], unique="k", backoff=Backoff(1, 2, 3), delay_s=1.0)
    assert said.as_keywords().keys() <= record


def test_two_keywords_of_a_write_that_say_the_same_are_refused():
    with pytest.raises(UsageError, match="expires_s and expires_at cannot be combined"):
        named_options(expires_s=60.0, expires_at=4_102_531_200_000)


@pytest.mark.parametrize(("name", "value"), [("after", 7), ("after", [object()]), ("expires_at", "soon")])
def test_keyword_of_a_write_that_cannot_be_is_refused_by_its_name(name: str, value: object):
    with pytest.raises(UsageError, match=name):
        named_options(**{name: value})


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"row_per_chunk": 1}, "Did you mean rows_per_chunk?"),
        ({"rowsPerChunk": 1}, "Did you mean rows_per_chunk?"),
        ({"colour": "red"}, "Known are "),
    ],
)
def test_unknown_keyword_is_refused_in_the_spelling_of_python(given: dict[str, object], hint: str):
    with pytest.raises(UsageError, match=r"is not a known argument of opsq\.spark\.write\(\)") as caught:
        named_options(**given)
    assert hint in str(caught.value.hint)
