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


def test_broken_settings_file_is_a_finding(opsq):
    (opsq.folder / "opsq").mkdir()
    (opsq.folder / "opsq" / "opsq.toml").write_text("foo = 1\n")
    ran = opsq("doctor", "--json", environ={"XDG_CONFIG_HOME": str(opsq.folder)})
    assert ran.status == 5
    findings = {finding["check"]: finding for finding in ran.json["findings"]}
    assert not findings["settings"]["ok"]
    assert "foo" in findings["settings"]["detail"]
    assert "opsq.toml(5)" in findings["settings"]["advice"]
