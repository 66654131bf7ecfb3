"""opsq doctor: what is wrong here, and what to do."""


def test_running_daemon_is_found_well(queue):
    findings = {finding["check"]: finding for finding in queue.ok("doctor", "--json").json["findings"]}
    assert findings["daemon"]["ok"]
    assert findings["socket"]["ok"]


def test_missing_daemon_is_exit_5_with_advice(opsq):
    ran = opsq("doctor", "--json")
    assert ran.status == 5
    findings = {finding["check"]: finding for finding in ran.json["findings"]}
    assert not findings["daemon"]["ok"]
    assert "opsq start" in findings["daemon"]["advice"]
    assert ran.json["error"]["exit"] == 5
