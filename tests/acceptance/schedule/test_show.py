"""opsq schedule show: everything about one schedule."""


def test_as_many_instants_as_asked_for(queue):
    queue.ok("schedule", "add", "n", "0 3 1 * *", "--tz", "America/New_York", "--from", "2030-01-01T00:00Z")
    shown = queue.ok("schedule", "show", "n", "--next", "4", "--json").json
    assert shown["upcoming"] == [
        f"2030-0{month}-01T0{hour}:00:00.000Z" for month, hour in ((1, 8), (2, 8), (3, 8), (4, 7))
    ]


def test_person_reads_names_and_values(queue):
    queue.ok("schedule", "add", "n", "@daily", "--jitter", "5m", "--catch-up", "all=2h", "-m", "tenant=acme")
    fields = dict(line.split("\t") for line in queue.ok("schedule", "show", "n").lines)
    assert (fields["when"], fields["jitter"], fields["metadata"]) == ("@daily (UTC)", "5m", "tenant=acme")
    assert fields["catch-up"] == "all, of the last 2h"


def test_unknown_schedule_has_status_3(queue):
    refused = queue("schedule", "show", "nope")
    assert refused.status == 3
    assert "opsq schedule list" in refused.err
