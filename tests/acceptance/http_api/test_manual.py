"""The curl lines of opsq-http-api(7) do what the page says."""

import json
import re
from pathlib import Path

import pytest

from acceptance.http_api.test_inspecting import kill_one

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "man" / "opsq-http-api.7").read_text().replace("\\-", "-").replace("\\en", "\\n")
ENTRIES = re.findall(
    r"(?m)^\.TP\n\.B ((?:GET|POST|PUT|PATCH|DELETE) \S+)\n(?:.*\n)+?\.IP\n\.EX\n(curl .*)\n\.EE$", PAGE
)


def test_each_endpoint_has_an_entry_with_a_curl_line():
    paths = json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"]
    endpoints = [f"{method.upper()} {path}" for path, operations in paths.items() for method in operations]
    ours = {"/ID": "/{submission_id}", "INDEX": "{index}", "/NAME": "/{name}"}
    told = [re.sub("/ID|INDEX|/NAME", lambda found: ours[found[0]], title) for title, _ in ENTRIES]
    assert sorted(each.replace(" /", " /api/v1/", 1) for each in told) == sorted(endpoints)


@pytest.mark.parametrize("group", ["Inspection", "Events", "Consumers", "Changes", "Schedules"])
def test_curl_lines_are_accepted(queue, api, group):
    section = PAGE.partition(f".SS {group}\n")[2].partition("\n.S")[0]
    ended = queue.submit_lines(1)
    queue.ok("cancel", ended)
    submission_id = queue.submit_lines(20, "-m", "tenant=acme", "--on-dead", "keep")
    kill_one(queue, submission_id)
    queue.ok("schedule", "add", "nightly", "@daily")
    lines = [line for line in section.splitlines() if line.startswith("curl ")]
    assert len(lines) >= 2
    for line in lines:
        handle = queue.reserve() if "$HANDLE" in line else ""
        curl = line.replace("localhost:7480", api.base_url.netloc.decode()).replace("wait=60", "wait=0")
        curl = curl.replace("curl ", "curl -s -w '\\n%{http_code}' ", 1)
        goes_on = "events/stream" in line
        curl += " -m 1" * goes_on
        done = queue.shell(f"ID={submission_id} ENDED={ended} HANDLE={handle}; {curl}")
        assert (done.status, done.lines[-1]) == (28 if goes_on else 0, "200"), (line, done)
