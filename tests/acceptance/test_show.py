"""opsq show: one submission, for people and for programs."""


def test_counts_and_rules_are_shown(queue):
    submission = queue.submit_lines(3, "--priority", "-2", "-m", "tenant=a", "--backoff", "1,3,1m", "--reservation", "2m")
    queue.ok("complete", queue.reserve())
    queue.reserve()
    shape = queue.ok("show", "--json", submission).json
    counts = {name: shape[name] for name in ("chunks", "completed", "reserved", "waiting", "dead")}
    assert counts == {"chunks": 3, "completed": 1, "reserved": 1, "waiting": 1, "dead": 0}
    assert (shape["priority"], shape["metadata"], shape["reservation_s"]) == (-2, {"tenant": "a"}, 120)
    assert shape["backoff"] == {"base_s": 1, "factor": 3, "max_s": 60}
    assert shape["submitted_at"].endswith("Z")
    plain = dict(line.split("\t") for line in queue.ok("show", submission).lines)
    assert (plain["submission id"], plain["state"], plain["metadata"]) == (submission, "open", "tenant=a")


def test_case_93_every_failure_is_json_when_json_was_asked_for(queue):
    ran = queue("show", "--json", "999")
    assert ran.status == 3
    assert ran.json["error"].keys() == {"code", "exit", "message", "hint"}
    assert (ran.json["error"]["code"], ran.json["error"]["exit"]) == ("not_found", 3)


def test_text_that_looks_like_a_number_stays_text(queue):
    submission = queue.submit_lines(1, "-m", 'a="7"', "-m", "b=7", "-m", "c=007")
    assert queue.ok("show", "--json", submission).json["metadata"] == {"a": "7", "b": 7, "c": "007"}
    assert 'a="7" b=7 c=007' in queue.ok("show", submission).text
