"""`/metrics` of the gateway, and the dashboard and alerts of examples/monitoring, which must name what is there."""

import json
import re
import shlex
import subprocess
from io import StringIO
from pathlib import Path

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_fd_to_metric_families as parse

from acceptance.test_gateway import DEADLINE_S, ended, gateway, get
from waiting import wait_until

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "examples" / "monitoring"
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
"""As Prometheus asks."""
ADDED = {"instance", "job"}
"""Labels that Prometheus adds."""


def text_samples(text):
    """All samples of the text format."""
    return [sample for family in parse(StringIO(text)) for sample in family.samples]


@pytest.fixture
def busy(queue):
    """A queue with something of everything that the examples ask for."""
    queue.submit_lines(3, "-m", "tenant=acme", "--on-dead", "keep")
    queue.ok("limit", "tenant=acme", "--concurrency", "2")
    queue.ok("fail", "--no-retry", queue.reserve())
    queue.ok("complete", queue.reserve())
    return queue


def queries():
    """Each query of the examples, by where it stands."""
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield f"panel {panel['title']}", target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]
    for annotation in dashboard["annotations"]["list"]:
        yield f"annotation {annotation['name']}", annotation["expr"]


def selectors(query):
    """The metrics that a query names, each with the labels that it selects by, and how."""
    for name, _, matchers in re.findall(r"\b(opsq_\w+)(\{([^}]*)\})?", query):
        yield name, re.findall(r'(\w+)(=~|=)"([^"]*)"', matchers)


def grouping_labels(query):
    """The labels by which a query groups, and of which label_values lists values."""
    for labels in re.findall(r"\b(?:by|ignoring) \(([^)]*)\)", query):
        yield from (label.strip() for label in labels.split(","))
    yield from re.findall(r"label_values\(\w+, (\w+)\)", query)


def test_every_query_of_dashboard_and_alerts_finds_what_it_names(busy):
    busy.environ["OPSQ_MAX_BACKLOG_CHUNKS"] = "1000"
    busy.ok("restart")
    with (
        gateway(busy, "--listen", "127.0.0.1:0", "--metrics-by", "tenant") as (url, process),
        busy.running("consume", "--", "cat"),
    ):
        wait_until(lambda: "opsq_unmatched_chunks " in get(f"{url}/metrics").text, DEADLINE_S, "a consumer")
        samples = text_samples(get(f"{url}/metrics").text)
        assert ended(process) == (0, b"")
    asked = set()
    for place, query in queries():
        for name, matchers in selectors(query):
            asked.add(name)
            found = [sample for sample in samples if sample.name == name]
            assert found, f"{place}: there is no {name}"
            for label, how, value in matchers:
                if label in ADDED or "$" in value:
                    continue
                wanted = value.split("|") if how == "=~" else [value]
                known = {sample.labels[label] for sample in found}
                assert set(wanted) <= known, f"{place}: {name} has no {label} {value}"
        known = {
            label for name, _ in selectors(query) for each in samples if each.name == name for label in each.labels
        }
        assert set(grouping_labels(query)) <= known | ADDED, place
    assert len(asked) > 20
    panels = " ".join(query for place, query in queries() if place.startswith(("panel", "variable", "annotation")))
    shown = {re.sub("_(bucket|count|sum)$", "", sample.name) for sample in samples if sample.name.startswith("opsq_")}
    left_out = {name for name in shown if name not in panels}
    assert left_out == {
        "opsq_pauses",
        "opsq_limits",
        "opsq_daemon_state",
        "opsq_unfolded_events",
        "opsq_log_kept_seconds",
        "opsq_overlooked_waits_total",
        "opsq_unmatched_chunks",
        "opsq_value_submissions",
        "opsq_values",
    }


def test_manual_names_every_metric(busy):
    page = (ROOT / "man" / "opsq-metrics.1").read_text().replace("\\", "")
    document = busy.ok("metrics", "--by", "tenant", "--json").json
    for metric in document["metrics"]:
        for sample in metric["samples"]:
            assert metric["name"] in page
            assert metric["type"] == "histogram" or sample["name"] in page


def test_prometheus_gets_the_format_that_it_asks_for(busy):
    with gateway(busy) as (url, process):
        plain = get(f"{url}/metrics")
        assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert {"opsq_chunks", "opsq_chunk_run_seconds_bucket"} <= {sample.name for sample in text_samples(plain.text)}
        other = get(f"{url}/metrics", headers={"Accept": OPENMETRICS})
        assert other.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
        families = {family.name: family for family in parse_openmetrics(other.text)}
        assert (families["opsq_database_bytes"].type, families["opsq_database_bytes"].unit) == ("gauge", "bytes")
        assert families["opsq_chunk_run_seconds"].type == "histogram"
        assert not {"opsq_values"} & families.keys()
        assert (
            get(f"{url}/metrics", headers={"Accept": "application/openmetrics-text;version=x,;;;q"}).status_code == 200
        )
        assert ended(process) == (0, b"")


def test_metrics_need_a_daemon_and_beyond_this_machine_a_token_that_may_read(opsq):
    with gateway(opsq) as (url, process):
        refused = get(f"{url}/metrics")
        assert (refused.status_code, refused.json()["code"]) == (503, "unreachable")
        assert ended(process) == (0, b"")
    opsq.ok("start")
    token = opsq.ok("token", "create", "prometheus", "--role", "read-only").text.split()[-1]
    with gateway(opsq, "--listen", "0.0.0.0:0") as (url, process):
        assert get(f"{url}/metrics").status_code == 401
        assert get(f"{url}/metrics", headers={"Authorization": "Bearer " + "x" * 43}).status_code == 401
        allowed = get(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"})
        assert allowed.status_code == 200, allowed.text
        assert ended(process) == (0, b"")


def test_key_of_metrics_must_be_one(opsq):
    assert opsq("gateway", "--metrics-by", "submission").status == 2
    assert opsq("gateway", "--metrics-by", "no key").status == 2


def test_command_of_the_manual_works(busy):
    page = (ROOT / "man" / "opsq-gateway.1").read_text().replace("\\-", "-")
    [command] = re.findall(r"(?m)^curl -s .*/metrics$", page)
    with gateway(busy) as (url, process):
        words = shlex.split(command.replace("localhost:7480", url))
        done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0
        assert text_samples(done.stdout)
        assert ended(process) == (0, b"")
