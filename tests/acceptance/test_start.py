"""opsq start: returns when the daemon serves; once is enough."""

import json
import signal

from opsq.ids import shard_of
from waiting import wait_until


def test_started_daemon_serves_and_tells_its_pid(opsq):
    document = opsq.ok("start", "--json").json
    assert document["status"] == "started"
    assert document["pid"] == opsq.ok("status", "--json").json["pid"]
    assert document["socket"] == str(opsq.state_dir / "opsq.sock")


def test_success_is_silent(opsq):
    assert opsq.ok("start").out == b""


def test_second_start_is_exit_0_and_names_the_pid(queue):
    pid = queue.ok("status", "--json").json["pid"]
    document = queue.ok("start", "--json").json
    assert (document["status"], document["pid"]) == ("already_running", pid)


def test_flags_are_settings_of_the_daemon(opsq):
    opsq.ok("start", "--socket-mode", "0660", "--listen", "127.0.0.1:0", "--reservation-s", "2m")
    assert (opsq.state_dir / "opsq.sock").stat().st_mode & 0o777 == 0o660
    submission = opsq.submit_lines(1)
    assert opsq.ok("show", submission, "--json").json["reservation_s"] == 120


def test_foreground_serves_until_sigterm_and_is_exit_0(opsq):
    with opsq.running("start", "--foreground") as process:
        wait_until(lambda: opsq("status").status == 0)
        assert opsq.ok("status", "--json").json["pid"] == process.pid
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 0
    assert opsq("status").status == 4


def test_shard_number_stays_in_the_file_and_stands_in_every_id(opsq):
    opsq.ok("start", "--shard", "3")
    assert shard_of(int(opsq.submit_lines(1))) == 3
    opsq.ok("restart")
    assert shard_of(int(opsq.submit_lines(1))) == 3


def test_another_shard_number_than_that_of_the_file_is_exit_5_and_says_what_to_do(opsq):
    opsq.ok("start", "--shard", "3")
    opsq.ok("stop")
    ran = opsq("start", "--shard", "4")
    assert ran.status == 5
    assert "is shard 3" in ran.err
    assert "--state-dir" in ran.err
    assert opsq("start", "--shard", "1024").status == 2


def test_too_long_a_socket_path_is_exit_2_with_limit_and_setting(opsq):
    ran = opsq("start", "--socket", f"/tmp/{'x' * 120}")
    assert ran.status == 2
    assert "125 bytes" in ran.err
    assert "--socket" in ran.err


def test_bad_setting_is_exit_2_and_names_where_it_came_from(opsq):
    ran = opsq("start", "--json", environ={"OPSQ_MAX_ATTEMPTS": "none"})
    assert ran.status == 2
    assert "OPSQ_MAX_ATTEMPTS" in json.loads(ran.out)["error"]["message"]


def test_damaged_database_is_refused_untouched_with_exit_6(opsq):
    opsq.ok("start")
    opsq.ok("stop")
    database = opsq.state_dir / "opsq.sqlite"
    damaged = b"no database at all" * 1000
    database.write_bytes(damaged)
    ran = opsq("start")
    assert ran.status == 6
    assert str(database) in ran.err
    assert database.read_bytes() == damaged


def test_address_of_another_machine_is_exit_2(opsq):
    assert opsq("start", "--address", "localhost:1").status == 2


def test_options_that_differ_from_those_of_the_running_daemon_are_told(queue):
    ran = queue("start", "--max-attempts", "7")
    assert ran.status == 0
    assert "--max-attempts" in ran.err
    assert "opsq restart" in ran.err
    assert queue.ok("start").err == ""
