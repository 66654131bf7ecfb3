"""opsq notify: programs of opsq.toml get events, once set up and over restarts; what is set up wrongly is refused."""

import json
import signal
import subprocess

import pytest

from waiting import wait_until


def got(queue):
    path = queue.folder / "got"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def configure(queue, text):
    (queue.folder / "config" / "opsq" / "opsq.toml").write_text(text)


def test_program_gets_what_happens_after_the_first_run_and_nothing_twice(notified):
    notified.ok("pause", "tenant=a", "--quiet")
    notified.ok("stop")
    assert notified.ok("notify", "--once", "--json").json == {"delivered": 1, "waiting": 0, "dead": 0}
    assert notified.ok("notify", "--once", "--json").json == {"delivered": 0, "waiting": 0, "dead": 0}
    [event] = got(notified)
    assert (event["kind"], event["subject"]) == ("paused", "pause tenant=a")
    assert event["text"].startswith("Work of tenant=a was paused by ")


def test_events_of_a_queue_that_was_put_back_are_all_delivered_and_no_other_again(notified):
    notified.ok("pause", "tenant=a", "--quiet")
    notified.ok("backup", "copy.sqlite")
    notified.ok("pause", "tenant=b", "--quiet")
    assert notified.ok("notify", "--once", "--json").json["delivered"] == 2
    notified.ok("stop")
    (notified.folder / "copy.sqlite").replace(notified.state_dir / "opsq.sqlite")
    notified.ok("start")
    for tenant in "cd":
        notified.ok("pause", f"tenant={tenant}", "--quiet")
    assert notified.ok("notify", "--once", "--json").json["delivered"] == 2
    assert sorted(event["metadata"]["tenant"] for event in got(notified)) == list("abcd")


def test_failure_is_logged_and_waits_for_the_next_run(notified):
    notified.ok("pause", "tenant=a", "--quiet")
    notified.ok("resume", "tenant=a", "--quiet")
    ran = notified("notify", "--once", "--backoff", "1h", "--json")
    assert ran.json == {"delivered": 1, "waiting": 1, "dead": 0}
    assert ran.err.startswith(
        "opsq: on: delivery 2 (pause tenant=a) failed: sh: exit status 1: no mail; attempt 1 of 10"
    )
    assert notified.ok("notify", "--once", "--json").json == {"delivered": 0, "waiting": 1, "dead": 0}


def test_notifier_delivers_as_things_happen_over_a_restart_until_it_is_stopped(notified):
    command = [*notified.program, "notify", "--backoff", "10ms", "--json"]
    with subprocess.Popen(command, env=notified.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as notifier:
        try:
            notified.ok("pause", "tenant=a", "--quiet")
            wait_until(lambda: len(got(notified)) == 1)
            notified.ok("restart")
            notified.ok("pause", "tenant=b", "--quiet")
            wait_until(lambda: len(got(notified)) == 2)
            second = notified("notify")
            assert (second.status, "Another opsq notify" in second.err) == (5, True)
            notifier.send_signal(signal.SIGTERM)
            out, err = notifier.communicate(timeout=60)
        finally:
            notifier.kill()
    assert (notifier.returncode, json.loads(out), err) == (0, {"delivered": 2, "waiting": 0, "dead": 0}, b"")


def test_signal_gives_up_on_a_program_that_goes_on_and_the_next_run_delivers(notified):
    configure(notified, f'[on]\npaused = ["sh", "-c", "touch {notified.folder}/runs; sleep 1000"]\n')
    environ = {**notified.environ, "OPSQ_GRACE_S": "0.1"}
    command = [*notified.program, "notify", "--json"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as notifier:
        try:
            notified.ok("pause", "tenant=a", "--quiet")
            wait_until((notified.folder / "runs").exists)
            notifier.send_signal(signal.SIGINT)
            out, _ = notifier.communicate(timeout=60)
        finally:
            notifier.kill()
    assert json.loads(out) == {"delivered": 0, "waiting": 1, "dead": 0}
    configure(notified, f'[on]\npaused = ["sh", "-c", "cat >> {notified.folder}/got"]\n')
    assert notified.ok("notify", "--once", "--json").json == {"delivered": 1, "waiting": 0, "dead": 0}
    assert len(got(notified)) == 1


def test_second_signal_ends_the_wait_for_a_program_that_goes_on(notified):
    configure(notified, f'[on]\npaused = ["sh", "-c", "touch {notified.folder}/runs; sleep 1000"]\n')
    environ = {**notified.environ, "OPSQ_GRACE_S": "1000"}
    with subprocess.Popen([*notified.program, "notify", "--quiet"], env=environ) as notifier:
        try:
            notified.ok("pause", "tenant=a", "--quiet")
            wait_until((notified.folder / "runs").exists)
            wait_until(lambda: notifier.send_signal(signal.SIGTERM) or notifier.poll() is not None)
        finally:
            notifier.kill()
    configure(notified, f'[on]\npaused = ["sh", "-c", "cat >> {notified.folder}/got"]\n')
    assert notified.ok("notify", "--once", "--json").json == {"delivered": 1, "waiting": 0, "dead": 0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names nobody"),
        ('[on]\nfaild = ["true"]\n', "'faild'"),
        ('[on]\nfailed = "true"\n', "on"),
        ("[on]\nfailed = []\n", "on"),
        ('[[webhook]]\nname = "ops"\nurl = "http://localhost/"\n', "secret"),
        ('[[webhook]]\nname = "ops"\nurl = "localhost"\nsecret = "whsec_a"\n', "url"),
        (
            '[[webhook]]\nname = "ops"\nurl = "http://localhost/"\nsecret = "whsec_a"\n',
            "by at least 16 bytes",
        ),
        ('[[webhook]]\nname = "ops"\nurl = "http://localhost/"\nsecret_file = "/no"\n', "No such file"),
        ('[[webhook]]\nname = "ops"\nurl = "http://localhost/"\nsecret = "whsec_a"\nevent = ["dead"]\n', "event"),
    ],
)
def test_wrong_tables_are_refused(notified, text, said):
    configure(notified, text)
    ran = notified("notify", "--once")
    assert (ran.status, said in ran.err) == (2, True), ran.err


def test_targets_are_listed_among_the_settings_without_secrets(notified):
    configure(
        notified,
        '[on]\ndead = ["mail", "-s", "a b", "ada"]\n'
        '[[webhook]]\nname = "ops"\nurl = "https://u:p@example.com/x?token=t"\nsecret = "whsec_secret"\n',
    )
    ran = notified.ok("config")
    found = [line.split("\t")[:2] for line in ran.lines if line.startswith(("on.", "webhook."))]
    assert found == [["on.dead", "mail -s 'a b' ada"], ["webhook.ops", "https://example.com"]]
    assert "secret" not in ran.text.replace("secret_", "")


def test_without_a_queue_the_verb_says_so(opsq):
    config = opsq.folder / "config" / "opsq"
    config.mkdir(parents=True)
    (config / "opsq.toml").write_text('[on]\nfailed = ["true"]\n')
    opsq.environ["XDG_CONFIG_HOME"] = str(opsq.folder / "config")
    assert opsq("notify").status == 4
