"""The page of the gateway, as a browser without scripts is sent it."""

import contextlib
import html
import re

import httpx
import pytest

from waiting import wait_until

DEADLINE_S = 180
PAGES = ("/", "/submissions", "/dead", "/schedules", "/rules", "/strategies", "/history")
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HOSTILE = "<script>alert(1)</script>\u202eevil\x1b[31m"


@contextlib.contextmanager
def browsing(queue, *options):
    """A client of a gateway."""
    address = () if "--listen" in options else ("--listen", "127.0.0.1:0")
    with queue.running("gateway", *address, *options) as process:
        url = process.stdout.readline().decode().strip()
        with httpx.Client(base_url=url.replace("0.0.0.0", "127.0.0.1"), timeout=DEADLINE_S, trust_env=False) as client:
            yield client


def text_of(answer, status=200):
    """What a person reads of a page, without its markup."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", answer.text)
    assert re.findall(r"<script[^>]*>", answer.text) == re.findall(r'<script src="/assets/[^"]+" defer>', answer.text)
    body = re.sub(r"<[^>]*>", " ", answer.text)
    return re.sub(r"\s+", " ", html.unescape(body))


def dead_chunk(queue, reason):
    """The submission of a chunk that has died for a reason."""
    submission = queue.submit_lines(1, "--on-dead", "keep", "--title", "Dies")
    queue.ok("fail", "--no-retry", "--reason", reason, queue.reserve())
    return submission


def test_every_page_of_an_empty_queue_says_that_there_is_nothing(queue):
    with browsing(queue) as client:
        said = [text_of(client.get(path)) for path in PAGES]
    assert "No consumer is connected" in said[0]
    assert "There are no submissions" in said[1]
    assert "No chunk is dead" in said[2]
    assert "There are no schedules" in said[3]
    assert "Nothing is paused" in said[4]
    assert "No consumer waits for work" in said[5]
    assert "Nothing has happened yet" in said[6]


def test_links_of_other_sites_lead_to_the_page_and_what_they_embed_is_refused(queue):
    with browsing(queue) as client:
        for site in ("cross-site", "same-site"):
            link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
            text_of(client.get("/submissions", headers=link))
            assert client.get("/", headers={"Sec-Fetch-Site": site, "Sec-Fetch-Dest": "image"}).status_code == 403


def test_files_of_the_page_are_kept_by_browsers_under_names_that_tell_their_content(queue):
    with browsing(queue) as client:
        names = re.findall(r"/assets/[^\"]+", client.get("/").text)
        assert len(names) == 2
        for name in names:
            assert re.search(r"\.[0-9a-f]{16}\.(css|js)$", name)
            found = client.get(name)
            assert (found.status_code, found.headers["cache-control"]) == (200, "public, max-age=31536000, immutable")
            assert "http" not in re.sub(r"/\*.*?\*/", "", found.text, flags=re.DOTALL)


def test_overview_counts_and_says_what_is_held_back_and_where_it_runs(queue):
    queue.submit_lines(3, "-m", "tenant=acme")
    queue.ok("pause", "tenant=acme")
    queue.submit_lines(5)
    queue.reserve()
    with browsing(queue) as client:
        said = text_of(client.get("/"))
    assert "waiting 7 delayed 0 reserved 1 completed 0" in said
    assert "has been paused by" in said
    assert "opsq resume tenant=acme" in said
    assert "Oldest waiting" in said
    assert re.search(r"Consumers Consumer Reserved Oldest Waits for \S+ lease 1", said)


def test_submissions_are_filtered_and_paged_and_none_is_missing_or_twice(queue):
    ids = [queue.submit_lines(1, "-m", f"number={number}") for number in range(3)]
    queue.ok("cancel", ids[1])
    with browsing(queue) as client:
        assert ids[1] in text_of(client.get("/submissions", params={"state": "cancelled"}))
        one = text_of(client.get("/submissions", params={"m": "number=2"}))
        assert ids[2] in one
        assert ids[0] not in one
        assert "No submission fits" in text_of(
            client.get("/submissions", params={"m": "number='2'", "state": "failed"})
        )
        for number in range(60):
            client.post("/record", json={"payload": str(number)})
        page = client.get("/submissions", params={"m": "queue=default"})
        seen = re.findall(r'href="/submissions/(\d+)"', page.text)
        [following] = re.findall(r'rel="next" href="([^"]+)"', page.text)
        page = client.get(html.unescape(following))
        seen += re.findall(r'href="/submissions/(\d+)"', page.text)
        assert len(set(seen)) == len(seen) == 60
        refused = text_of(client.get("/submissions", params={"m": "nonsense"}), 400)
        assert "Write KEY=VALUE" in refused
        assert "nonsense" in text_of(client.get("/submissions", params={"state": "nonsense"}), 400)


def test_submission_tells_its_chunks_failures_inputs_and_why_it_does_not_run(queue):
    queue.file("access.log", b"a\nb\nc\nd\n")
    submission = queue.ok("submit", "access.log", "--lines", "1", "--title", "Logs", "-m", "tenant=acme").text
    queue.ok("complete", queue.reserve())
    queue.ok("fail", "--delay", "1h", "--reason", "the disk of the customer is full", queue.reserve())
    handle = queue.reserve()
    with browsing(queue) as client:
        page = client.get(f"/submissions/{submission}")
        said = text_of(page)
        assert "Logs" in said
        assert "chunks 4 completed 1 reserved 1 waiting 1 delayed 1 dead 0" in said
        assert "Map of the chunks: 1 completed, 1 reserved, 0 dead, 0 skipped, 2 waiting" in page.text
        assert "the disk of the customer is full" in said
        assert "access.log" in said
        assert "4 chunks: " in said
        index = handle.partition("/")[2].partition("@")[0]
        chunk = text_of(client.get(f"/submissions/{submission}/{index}"))
        assert "is reserved" in chunk
        assert "access.log, bytes" in chunk
        assert "Submission 12 is not known" in text_of(client.get("/submissions/12"), 404)
        assert text_of(client.get("/submissions/nonsense"), 404)
        assert text_of(client.get(f"/submissions/{submission}/99"), 404)
        assert text_of(client.get(f"/submissions/{submission}/x"), 400)


def test_dead_chunks_are_filtered_by_reason_and_submission(queue):
    submission, other = dead_chunk(queue, "quota exceeded"), dead_chunk(queue, "no route to host")
    with browsing(queue) as client:
        assert f"{submission}/0" in text_of(client.get("/dead"))
        found = text_of(client.get("/dead", params={"reason": "QUOTA"}))
        assert f"{submission}/0" in found
        assert f"{other}/0" not in found
        assert "no route to host" in text_of(client.get("/dead", params={"id": other}))
        assert "No dead chunk fits" in text_of(client.get("/dead", params={"m": "tenant=x"}))


def test_rules_strategies_and_history_say_what_the_verbs_say(queue):
    queue.submit_lines(2, "-m", "tenant=acme", "-m", "kind=mail")
    queue.ok("limit", "tenant", "--concurrency", "5", "--rate", "100/m")
    queue.ok("weight", "tenant=acme", "3")
    queue.submit_lines(1, "-m", "tenant=globex")
    queue.ok("complete", queue.reserve())
    queue.ok("pause", "kind=mail")
    with browsing(queue) as client:
        rules = text_of(client.get("/rules"))
        assert "kind=mail pause" in rules
        assert "each tenant 5 at once, 100/m" in rules
        assert "tenant=acme 3" in rules
        explained = text_of(client.get("/strategies", params={"s": "Fair(tenant)", "try": "1"}))
        assert "Fair(tenant) over everything" in explained
        assert "Would come next" in explained
        assert "Nonsense" in text_of(client.get("/strategies", params={"s": "Nonsense("}), 400)
        history = client.get("/history", params={"event": "completed", "m": "tenant=acme", "since": "1h"})
        assert "completed 1" in text_of(history)
        assert '<svg viewBox="0 0 10 90"' in history.text
        assert "Nothing fits" in text_of(client.get("/history", params={"event": "dead"}))
        assert "is not a duration" in text_of(client.get("/history", params={"since": "soon"}), 400)


def test_schedules_say_when_they_come_and_what_became_of_the_last(queue):
    queue.ok("schedule", "add", "nightly", "30 2 * * *", "--tz", "Europe/Amsterdam", "--title", "Reports")
    queue.ok("schedule", "add", "weekly", "@weekly")
    queue.ok("schedule", "pause", "weekly", "--note", "holiday")
    [made] = queue.ok("schedule", "trigger", "nightly").lines
    with browsing(queue) as client:
        said = text_of(client.get("/schedules"))
        assert "nightly Reports 30 2 * * * Europe/Amsterdam in" in said
        assert f"{made} open" in said
        assert "weekly @weekly paused" in said
        assert "holiday" in said
        assert "Trigger" not in said


def test_markup_and_characters_that_turn_or_move_text_are_shown_and_do_nothing(queue):
    submission = queue.ok(
        "submit", "-", "--lines", "1", "-m", f"tenant={HOSTILE}", "--title", "<b>bold</b>", "--on-dead", "keep",
        stdin=b"x\n",
    ).text  # fmt: skip
    queue.ok("fail", "--no-retry", "--reason", HOSTILE, queue.reserve())
    queue.ok("pause", f"tenant={HOSTILE}")
    queue.ok("schedule", "add", "nightly", "@daily", "--title", "<b>bold</b>")
    queue.ok("schedule", "pause", "nightly", "--note", HOSTILE)
    with browsing(queue) as client:
        paths = [*PAGES, f"/submissions/{submission}", f"/submissions/{submission}/0", "/strategies?s=Fair(%3Cb%3E)"]
        for path in paths:
            page = client.get(path)
            text_of(page, page.status_code)
            assert "<script>alert" not in page.text
            assert not re.search(r"<[bi]>", page.text)
            assert not set("\u202e\x1b") & set(page.text), path
        said = text_of(client.get(f"/submissions/{submission}"))
        assert "<script>alert(1)</script>\\u202eevil" in said
        searched = client.get("/dead", params={"reason": '"><script>alert(1)</script>'})
        assert "<script>alert" not in searched.text


def test_page_says_when_no_daemon_answers_and_works_again_when_one_does(queue):
    with browsing(queue) as client:
        text_of(client.get("/"))
        queue.ok("stop")
        assert "No daemon answers. opsq start starts one." in re.sub(r" +\.", ".", text_of(client.get("/"), 503))
        queue.ok("start")
        wait_until(lambda: client.get("/").status_code == 200, DEADLINE_S, "the page is back")


@pytest.mark.parametrize("path", ["/history?after=x", "/dead?after=x", "/submissions?before=x", "/history?id=1/2/3"])
def test_queries_that_mean_nothing_are_refused_in_words(queue, path):
    with browsing(queue) as client:
        answer = client.get(path)
        assert answer.status_code in {400, 404}
        assert "That is not possible" in text_of(answer, answer.status_code)


def test_query_may_have_any_name(queue):
    with browsing(queue, "--allow-actions") as client:
        for path in (*PAGES, "/sign-in"):
            text_of(client.get(path, params={"path": "x", "request": "y", "self": "z"}))


def mark_in(page):
    """What a form of a page carries to show that it is its own."""
    return re.search(r'name="mark" value="([0-9a-f]{64})"', page.text)[1]


def signed_in(client, token):
    """Sign in as a browser does; the answer."""
    form = {"token": token, "back": "/rules", "mark": mark_in(client.get("/sign-in"))}
    return client.post("/sign-in", data=form, headers={"Origin": str(client.base_url).rstrip("/")})


def test_operator_changes_things_from_the_page_and_the_browser_cannot_read_the_token(queue):
    submission = queue.submit_lines(2, "-m", "tenant=acme", "--on-dead", "keep")
    queue.ok("fail", "--no-retry", queue.reserve())
    token = queue.ok("token", "create", "me", "--role", "operator").text
    with browsing(queue, "--allow-actions") as client:
        answer = signed_in(client, token)
        assert (answer.status_code, answer.headers["location"]) == (303, "/rules")
        assert answer.headers["set-cookie"] == f"opsq-token={token}; HttpOnly; Path=/; SameSite=strict"
        mark = mark_in(client.get("/rules"))

        def act(name, /, **form):
            sent = {"mark": mark, "back": "/rules?m=x", **form}
            return client.post(f"/actions/{name}", data=sent, headers={"Origin": str(client.base_url).rstrip("/")})

        assert act("pause", m="tenant=acme").headers["location"] == "/rules?m=x&done=pause%3A1"
        assert queue.ok("limits", "--json").json["pauses"][0]["metadata"] == {"tenant": "acme"}
        assert act("pause", m="tenant=acme").headers["location"].endswith("pause%3A0")
        assert "Nothing was named" in text_of(act("pause"), 400)
        assert act("resume", pairs='{"tenant":"acme"}').status_code == 303
        assert queue.ok("limits", "--json").json["pauses"] == []
        assert act("requeue", id=submission).headers["location"].endswith("requeue%3A1")
        assert act("cancel", id=submission, reason="not needed").status_code == 303
        assert queue.ok("show", submission, "--json").json["reason"] == "not needed"
        assert act("cancel", id=submission, back="//elsewhere.example/").headers["location"] == "/?done=cancel%3A0"
        queue.ok("schedule", "add", "nightly", "@daily")
        assert 'action="/actions/trigger-schedule"' in client.get("/schedules").text
        assert act("pause-schedule", name="nightly").headers["location"].endswith("pause-schedule%3A1")
        assert 'action="/actions/resume-schedule"' in client.get("/schedules").text
        assert act("resume-schedule", name="nightly").headers["location"].endswith("resume-schedule%3A1")
        assert act("trigger-schedule", name="nightly").headers["location"].endswith("trigger-schedule%3A1")
        assert queue.ok("schedule", "show", "nightly", "--json").json["open"] == 1
        assert "There is no schedule" in text_of(act("trigger-schedule", name="weekly"), 404)
        assert "The schedule goes on." in text_of(client.get("/schedules?done=resume-schedule:1"))
        assert "There is no such action" in text_of(act("destroy"), 404)
        assert "not a form of this page" in text_of(act("resume", pairs="["), 400)
        assert "It is paused." in text_of(client.get("/rules?done=pause:1"))
        assert "evil" not in text_of(client.get("/rules?done=evil:1"))
        client.post("/sign-out", data={"mark": mark})
        assert "opsq-token" not in client.cookies


def test_forms_of_others_and_browsers_without_an_operators_token_change_nothing(queue):
    submission = queue.submit_lines(1)
    operator = queue.ok("token", "create", "me", "--role", "operator").text
    producer = queue.ok("token", "create", "etl", "--role", "producer").text
    form = {"id": submission, "back": "/"}
    with browsing(queue, "--allow-actions") as client:
        mark = mark_in(client.get("/sign-in"))
        assert "may only be read" in text_of(client.post("/actions/cancel", data={**form, "mark": mark}), 403)
        signed_in(client, producer)
        mark = mark_in(client.get("/rules"))
        assert "may only be read" in text_of(client.post("/actions/cancel", data={**form, "mark": mark}), 403)
        signed_in(client, operator)
        assert "did not come from this page" in text_of(
            client.post("/actions/cancel", data={**form, "mark": mark}), 403
        )
        mark = mark_in(client.get("/rules"))
        for headers in ({"Origin": "https://elsewhere.example"}, {"Origin": "null"}, {"Host": "elsewhere.example"}):
            assert client.post("/actions/cancel", data={**form, "mark": mark}, headers=headers).status_code == 403
        foreign = client.post("/actions/cancel", data={**form, "mark": mark}, headers={"Sec-Fetch-Site": "same-site"})
        assert foreign.status_code == 403
        assert client.get("/actions/cancel", params={**form, "mark": mark}).status_code == 405
        for path in ("/actions/cancel", "/sign-in", "/sign-out"):
            assert "at most 65536 bytes" in text_of(client.post(path, content=b"x" * (1 << 17)), 413)
    with browsing(queue) as client:
        signed_in(client, operator)
        mark = mark_in(client.get("/rules"))
        assert "may only be read" in text_of(client.post("/actions/cancel", data={**form, "mark": mark}), 403)
        assert "Cancel" not in text_of(client.get(f"/submissions/{submission}"))
    assert queue.ok("show", submission, "--json").json["state"] == "open"


def test_beyond_this_machine_the_page_asks_for_a_token_and_shows_what_its_roles_permit(queue):
    token = queue.ok("token", "create", "reader", "--role", "read-only").text
    with browsing(queue, "--listen", "0.0.0.0:0") as client:
        asked = client.get("/submissions?state=open")
        assert (asked.status_code, asked.headers["location"]) == (303, "/sign-in?back=%2Fsubmissions%3Fstate%3Dopen")
        assert client.get("/live").status_code == 401
        assert client.get("/submissions/1/2/3").status_code == 404
        assert "does not know this token" in text_of(signed_in(client, "x" * 64), 401)
        assert signed_in(client, token).status_code == 303
        assert "There are no submissions" in text_of(client.get("/submissions"))
        assert client.get("/api/v1/status").status_code == 401, "a cookie is for the page alone"
        queue.ok("token", "revoke", "reader")
        wait_until(lambda: client.get("/").status_code == 303, DEADLINE_S, "the token is no longer known")


def test_cookie_is_for_secure_connections_alone_where_the_browser_has_one(queue):
    token = queue.ok("token", "create", "me", "--role", "operator").text
    with browsing(queue, "--listen", "0.0.0.0:0") as client:
        form = {"token": token, "mark": mark_in(client.get("/sign-in"))}
        origin = {"Origin": "https://queue.example", "Host": "queue.example"}
        cookie = client.post("/sign-in", data=form, headers=origin).headers["set-cookie"]
        assert cookie == f"__Host-opsq-token={token}; HttpOnly; Path=/; SameSite=strict; Secure"


def test_browsers_that_follow_are_told_of_changes_and_let_the_gateway_end(queue):
    with queue.running("gateway", "--listen", "127.0.0.1:0") as process:
        url = process.stdout.readline().decode().strip()
        with httpx.stream("GET", f"{url}/live", timeout=DEADLINE_S, trust_env=False) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = answer.iter_lines()
            assert next(line for line in lines if line) == "retry: 3000"
            queue.submit_lines(1)
            assert next(line for line in lines if line) == "data: changed"
            process.terminate()
            assert process.wait(DEADLINE_S) == 0
