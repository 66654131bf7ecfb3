"""Metrics as monitoring reads them: valid in both formats, bounded, and never with one name for two values."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

import msgspec
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_fd_to_metric_families as parse

from opsq import metrics
from opsq.gateway.exposition import Collected
from opsq.wire import messages as m

NASTY = ["acme", 1, "1", "-1", "", "(others)", '"quoted"', "a\nb", "a\\nb", "\x1b[31m", "\\x1b[31m", "\u202eleft", "é"]


def counts(value: int | str | None, waiting: int) -> m.Counts:
    """Of a value with so many waiting chunks, and a completed one."""
    return m.Counts(value, 1, waiting, 0, 0, 1, 0, 0)


def total(by: Sequence[m.Counts]) -> m.Counts:
    """Of all values together, as the daemon counts it apart."""
    columns = [[getattr(each, name) for each in by] for name in m.Counts.__struct_fields__[1:]]
    return m.Counts(None, *map(sum, columns))


def state(*by: m.Counts) -> m.DaemonState:
    """A daemon with something of everything."""
    durations = m.Durations([0.1, 1.0], [1, 0, 2], 7.5)
    return m.DaemonState(
        id=1,
        server="1.2.3",
        pid=4711,
        state="running",
        uptime_s=5.0,
        total=total(by),
        by=list(by),
        states={"open": 1},
        consumers=[m.ConsumerState("c", True, 0, 0.0, "Random", True)],
        parked_count=1,
        connections_count=2,
        oldest_reservation_s=0.5,
        unfolded_count=0,
        file_bytes=1 << 40,
        free_bytes=0,
        wal_bytes=10,
        settings={},
        unmatched_count=0,
        backlog_limit=10,
        disk_free_bytes=5,
        measures=m.Measures(61.0, 1, {"completed": 3}, durations, durations, durations, 0, durations),
    )


RULES = m.RulesState(
    2, [m.PauseState({}, True, "ada", 0)], [m.LimitState("tenant", None, 3, None, None, "ada", 0, 2, "acme")], []
)


def found(*by: m.Counts) -> list[metrics.Family]:
    """All metrics, counted by tenant."""
    return list(metrics.families(state(*by), RULES, "tenant"))


def samples(families) -> dict:
    """Parsed samples by name and labels; each is there once."""
    read = [
        (each.name, tuple(sorted(each.labels.items())), each.value) for family in families for each in family.samples
    ]
    assert len({sample[:2] for sample in read}) == len(read)
    return {sample[:2]: sample[2] for sample in read}


def test_both_formats_say_what_the_text_of_the_verb_says():
    families = found(*(counts(value, 1) for value in NASTY), counts(None, 2))
    text = "\n".join(metrics.text_lines(families)) + "\n"
    ours = list(parse(StringIO(text)))
    assert ours == list(parse(StringIO(generate_latest(Collected(families)).decode())))
    openmetrics = list(parse_openmetrics(generate_openmetrics(Collected(families)).decode()))
    assert samples(openmetrics) == samples(ours)
    assert [family.name for family in openmetrics] == [family.name for family in families]
    assert {family.unit for family in openmetrics} == {"", "seconds", "bytes"}
    assert all(family.name.endswith(family.unit) for family in openmetrics)
    assert all(line.isprintable() for line in text.splitlines())


def test_every_metric_has_a_meaning_that_is_a_sentence():
    for family in found():
        assert family.meaning[0].isupper() or family.meaning[0].isdigit()
        assert not {"\n", "\\"} & set(family.meaning)


def test_values_that_look_alike_have_labels_of_their_own():
    read = samples(parse(StringIO("\n".join(metrics.text_lines(found(*(counts(v, 1) for v in NASTY)))) + "\n")))
    labels = [dict(labels)["value"] for name, labels in read if name == "opsq_value_submissions"]
    assert len(set(labels)) == len(NASTY)
    assert {"acme", "1", '"1"', '""', '"(others)"'} <= set(labels)


def test_values_with_the_largest_backlog_are_shown_and_all_others_are_one():
    by = [counts(f"v{n}", n) for n in range(metrics.VALUES_LIMIT + 50)]
    read = samples(parse(StringIO("\n".join(metrics.text_lines(found(*by, counts(None, 7)))) + "\n")))
    waiting = {
        dict(labels)["value"]: value
        for (name, labels), value in read.items()
        if name == "opsq_value_chunks" and dict(labels)["state"] == "waiting"
    }
    assert len(waiting) == metrics.VALUES_LIMIT + 2
    assert waiting["v149"] == 149
    assert waiting[""] == 7
    assert waiting[metrics.OTHERS] == sum(range(50))
    assert read["opsq_values", (("key", "tenant"),)] == 150


def test_shards_that_do_not_answer_are_down():
    away = m.ShardState(4, "b:1", m.UNREACHABLE)
    unknown = m.ShardState(None, "c:1", m.UNREACHABLE)
    told = msgspec.structs.replace(state(), shards=[m.ShardState(3, "a:1", "running"), away, unknown])
    read = samples(parse(StringIO("\n".join(metrics.text_lines(metrics.families(told, RULES, None))) + "\n")))
    up = {dict(labels)["address"]: value for (name, labels), value in read.items() if name == "opsq_shard_up"}
    assert up == {"a:1": 1, "b:1": 0, "c:1": 0}


def test_histograms_are_cumulative():
    read = samples(parse(StringIO("\n".join(metrics.text_lines(found())) + "\n")))
    buckets = [read["opsq_chunk_run_seconds_bucket", (("le", bound),)] for bound in ("0.1", "1.0", "+Inf")]
    assert buckets == [1, 1, 3]
    assert read["opsq_chunk_run_seconds_count", ()] == 3
    assert read["opsq_chunk_run_seconds_sum", ()] == 7.5


def test_what_an_older_daemon_does_not_measure_is_left_out():
    older = state()
    older = type(older)(**{name: getattr(older, name) for name in older.__struct_fields__ if name != "measures"})
    names = {family.name for family in metrics.families(older, RULES, None)}
    assert "opsq_chunks" in names
    assert not names & {"opsq_oldest_waiting_seconds", "opsq_consumers", "opsq_chunk_events"}
