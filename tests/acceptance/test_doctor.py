"""opsq doctor: what is wrong here, and what to do."""

import subprocess


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


def test_lacks_of_a_job_of_cron_are_exit_5_with_a_line_for_the_crontab(opsq):
    ran = opsq("doctor", "--cron", "sort", "nosuchprogram", "--json")
    assert ran.status == 5
    findings = {finding["check"]: finding for finding in ran.json["findings"]}
    assert "PATH=" in findings["program opsq"]["advice"]
    assert findings["program sort"]["ok"]
    assert not findings["program nosuchprogram"]["ok"]
    assert findings["variables"]["advice"] == f"In the crontab: OPSQ_STATE_DIR={opsq.state_dir}"
    assert not opsq.state_dir.exists()


def test_line_for_the_crontab_is_all_that_opsq_needs(opsq):
    found = opsq("doctor", "--cron", "--json").json["findings"]
    path = next(each["advice"] for each in found if each["check"] == "program opsq").partition("PATH=")[2]
    script = f"PATH={path}; export PATH; opsq --version"
    assert subprocess.run(["/bin/sh", "-c", script], env={}, capture_output=True).returncode == 0


def test_programs_without_cron_are_exit_2(opsq):
    assert opsq("doctor", "sort").status == 2
