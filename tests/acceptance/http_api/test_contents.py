"""Content over HTTP: what is submitted as a body, and results, chunks and attachments as they come out."""

import concurrent.futures
import gzip
import io
import json
import os
import re
import socket
import sys
from pathlib import Path

import httpx
import pytest

from acceptance.http_api.conftest import DEADLINE_S, serving
from waiting import wait_until

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PAGE = Path(__file__).parents[3] / "man" / "opsq-http-api.7"
LINES = b"".join(b"%d\n" % number for number in range(3000))
TEXT = {"Content-Type": "text/plain"}


def submit(api, content, *, status=201, headers=TEXT, **query):
    """Submit a body; the document of the answer."""
    reply = api.post("submissions", content=content, headers=headers, params=query)
    assert reply.status_code == status, reply.text
    return reply.json()


def refused(reply):
    """Status and code of a problem document."""
    assert reply.headers["content-type"] == "application/problem+json", reply.text
    assert reply.json()["detail"]
    return reply.status_code, reply.json()["code"]


def chunks(api, document):
    """The bytes of all chunks of what was submitted."""
    path = f"submissions/{document['submission_id']}/chunks"
    return [api.get(f"{path}/{index}/content").content for index in range(document["chunks"])]


def folders(queue):
    """The content that is in the store."""
    return [name for name in os.listdir(queue.state_dir / "content") if not name.startswith("store-")]


def consumed(queue, document, *command):
    """Have a program complete all chunks; returns the id of the submission."""
    submission_id = document["submission_id"]
    queue.ok("consume", "--until-empty", "-s", f"SelectOnly(submission={submission_id})", "--", *(command or ("cat",)))
    return submission_id


def request_of(api, *lines):
    """A connection to the gateway, over which the head of a request was sent."""
    connection = socket.create_connection((api.base_url.host, api.base_url.port), timeout=DEADLINE_S)
    connection.sendall("\r\n".join(["POST /api/v1/submissions HTTP/1.1", "Host: localhost", *lines, "", ""]).encode())
    return connection


# --- in ---------------------------------------------------------------------------------------------------------------


def test_a_body_is_cut_as_the_verb_cuts_it(queue, api):
    for word in ("lines=700", "bytes=1K", "delimiter=9\\n", "crlf=strip", "per_file", "null", "csv"):
        name, _, value = word.partition("=")
        found = submit(api, LINES, **{name: value or "true"})
        expected = queue.ok("submit", "-", f"--{word.replace('_', '-')}", "--json", stdin=LINES).json
        assert (found["chunks"], found["bytes"], found["created"]) == (expected["chunks"], expected["bytes"], True)
        assert chunks(api, found) == chunks(api, expected)
        assert b"".join(chunks(api, found)) == LINES


def test_options_of_the_verb_are_parameters(queue, api):
    query = {"metadata": ["tenant=acme", "n=7"], "title": "Nightly ü", "priority": 5, "max_attempts": 2, "delay": "1h"}
    found = submit(api, LINES, on_dead="keep", backoff="1s,2,5m", **query)
    reply = api.post("submissions", content=b"", headers=TEXT)
    assert reply.headers["location"] == f"/api/v1/submissions/{reply.json()['submission_id']}"
    words = ["-m", "tenant=acme", "-m", "n=7", "--title", "Nightly ü", "--priority", "5", "--max-attempts", "2"]
    words += ["--delay", "1h", "--on-dead", "keep", "--backoff", "1s,2,5m"]
    other = queue.ok("submit", "-", *words, stdin=LINES).text
    ours, theirs = (queue.ok("show", each, "--json").json for each in (found["submission_id"], other))
    different = {name for name in ours if ours[name] != theirs[name]}
    assert different <= {
        "submission_id",
        "submitted_at",
        "not_before_at",
        "inputs",
        "submitted_by",
        "submitted_from",
        "held_back",
    }
    assert ours["inputs"] == ["body"]


def test_csv_repeats_its_header_if_it_says_that_it_has_one(api):
    table = b'name,text\n1,"a\nb"\n2,c\n'
    assert chunks(api, submit(api, table, headers={"Content-Type": "text/csv; header=present"}, lines=1)) == [
        b'name,text\n1,"a\nb"\n',
        b"name,text\n2,c\n",
    ]
    assert len(chunks(api, submit(api, table, headers={"Content-Type": "text/csv"}, lines=1))) == 3


WRONG = {
    "bytez=1": (400, "usage"),
    "lines=0": (400, "usage"),
    "lines=1&lines=2": (400, "usage"),
    "bytes=many": (400, "usage"),
    "bytes=1M&lines=2": (400, "usage"),
    "metadata=x": (400, "usage"),
    "metadata=a=1&metadata=a=2": (400, "usage"),
    "expires=2001-01-01T00:00Z": (400, "usage"),
    "priority=99999999999999999999": (400, "usage"),
    "keep=1h": (400, "usage"),
    "title=%0A": (400, "usage"),
    "bytes=1G": (400, "usage"),
}


def test_what_cannot_be_meant_is_refused_and_nothing_is_left(queue, api):
    found = {query: refused(api.post(f"submissions?{query}", content=LINES, headers=TEXT)) for query in WRONG}
    assert found == WRONG
    for media_type in ("application/json", "application/x-www-form-urlencoded", "nonsense"):
        reply = api.post("submissions", content=LINES, headers={"Content-Type": media_type})
        assert refused(reply) == (415, "http")
    long_line = api.post("submissions", content=b"x" * (65 << 20), headers=TEXT)
    assert refused(long_line) == (413, "chunk_too_large")
    assert queue.ok("list", "--json").json["submissions"] == []
    assert folders(queue) == []


def test_files_of_a_form_become_one_submission_each_with_chunks_of_its_own(queue, api):
    big = os.urandom(3 << 20)
    files = [
        ("file", ("a.log", LINES)),
        ("file", ("b.log.gz", gzip.compress(LINES))),
        ("attachment", ("notes", b"read me")),
        ("other", ("c.zst", zstd.compress(b"x\n"))),
        ("file", ("d.gz", b"not compressed\n")),
        ("file", ("e", big)),
    ]
    found = api.post("submissions", files=files, params={"per_file": True}).json()
    assert chunks(api, found) == [LINES, LINES, b"x\n", b"not compressed\n", big]
    shown = queue.ok("show", found["submission_id"], "--json").json
    assert shown["inputs"] == ["a.log", "b.log.gz", "c.zst", "d.gz", "e"]
    assert api.get(f"submissions/{found['submission_id']}/attachment").content == b"read me"
    as_is = api.post("submissions", files=files[1:2], params={"per_file": True, "as_is": True}).json()
    assert chunks(api, as_is) == [files[1][1][1]]
    none = api.get(f"submissions/{as_is['submission_id']}/attachment")
    assert refused(none) == (404, "not_found")


FORM = "multipart/form-data; boundary=x"
PART = b'--x\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\n'
BAD_FORMS = {
    "no boundary": ("multipart/form-data", PART),
    "no end": (FORM, PART + os.urandom(2 << 20)),
    "no file": (FORM, b"--x--\r\n"),
    "no form": (FORM, LINES),
    "a field": (FORM, b'--x\r\nContent-Disposition: form-data; name="lines"\r\n\r\n3\r\n--x--\r\n'),
    "a long header": (FORM, b"--x\r\nContent-Disposition: " + b"y" * (1 << 20)),
    "a long attachment": (
        FORM,
        b'--x\r\nContent-Disposition: form-data; name="attachment"\r\n\r\n' + bytes(2 << 20) + b"\r\n--x--\r\n",
    ),
    "xz": (FORM, PART.replace(b'"a"', b'"a.xz"') + b"\xfd7zXZ\0 and so on\r\n--x--\r\n"),
    "damaged gz": (FORM, PART.replace(b'"a"', b'"a.gz"') + gzip.compress(LINES)[:100] + b"\r\n--x--\r\n"),
}


def test_forms_that_are_none_are_refused_and_nothing_is_left(queue, api):
    statuses = {
        name: api.post("submissions", content=body, headers={"Content-Type": kind}).status_code
        for name, (kind, body) in BAD_FORMS.items()
    }
    assert statuses == {name: 413 if name == "a long attachment" else 400 for name in BAD_FORMS}
    assert folders(queue) == []
    assert queue.ok("list", "--json").json["submissions"] == []


def test_a_compressed_body_is_what_it_holds(queue, api):
    for coding, compress in (("gzip", gzip.compress), ("zstd", zstd.compress), ("GZIP", gzip.compress)):
        headers = TEXT | {"Content-Encoding": coding}
        packed = compress(LINES * 100)
        assert b"".join(chunks(api, submit(api, packed, headers=headers))) == LINES * 100
        for broken in (packed[: len(packed) // 2], b"nonsense", packed[:-8] + b"\xaa" * 8):
            assert refused(api.post("submissions", content=broken, headers=headers)) == (400, "input_unreadable")
    assert len(folders(queue)) == 3


def test_a_body_that_holds_far_more_than_was_sent_is_refused(queue, api):
    bombs = {"gzip": gzip.compress(b"\n" * (90 << 20)), "zstd": zstd.compress(b"\n" * (90 << 20))}
    for coding, bomb in bombs.items():
        reply = api.post("submissions", content=bomb, headers=TEXT | {"Content-Encoding": coding})
        assert refused(reply) == (413, "http"), coding
    wide = zstd.compress(os.urandom(1 << 20) * 20, options={zstd.CompressionParameter.window_log: 26})
    reply = api.post("submissions", content=wide, headers=TEXT | {"Content-Encoding": "zstd"})
    assert refused(reply) == (400, "input_unreadable")
    reply = api.post("submissions", content=LINES, headers=TEXT | {"Content-Encoding": "br"})
    assert (refused(reply), reply.headers["accept-encoding"]) == ((415, "http"), "gzip, zstd")
    assert folders(queue) == []


def test_idempotency_key_is_that_of_the_verb_and_tells_other_content(queue, api):
    keyed = TEXT | {"Idempotency-Key": "nightly"}
    first = submit(api, LINES, headers=keyed, lines=100)
    again = submit(api, LINES, headers=keyed, status=200, lines=100)
    assert again == first | {"created": False}
    assert (
        queue("submit", "-", "--lines", "100", "--idempotency-key", "nightly", stdin=LINES).text
        == first["submission_id"]
    )
    for content, query in ((LINES + b"x\n", {}), (LINES, {"priority": 3})):
        reply = api.post("submissions", content=content, headers=keyed, params={"lines": 100} | query)
        assert refused(reply) == (409, "conflict")
    assert len(folders(queue)) == 1
    assert refused(api.post("submissions", headers=keyed | {"Idempotency-Key": "x" * 2000})) == (400, "usage")


def test_a_client_that_vanishes_in_the_middle_leaves_nothing(queue, api):
    with request_of(api, "Content-Length: 9000000", "Content-Type: text/plain") as connection:
        connection.sendall(b"line\n" * 1_000_000)
        wait_until(lambda: folders(queue), DEADLINE_S, "content is written")
    wait_until(lambda: not folders(queue), DEADLINE_S, "it is removed")
    with request_of(api, "Transfer-Encoding: chunked") as connection:
        connection.sendall(b"5\r\nline\n\r\n")
    assert submit(api, LINES)["chunks"] == 1
    assert len(queue.ok("list", "--json").json["submissions"]) == 1


def test_an_upload_that_is_under_way_when_the_gateway_ends_is_given_up_and_leaves_nothing(queue):
    with serving(queue) as api, request_of(api, "Content-Length: 9000000") as connection:
        connection.sendall(b"line\n" * 1_000_000)
        wait_until(lambda: folders(queue), DEADLINE_S, "content is written")
        api.process.terminate()
        assert connection.makefile("rb").readline() == b"HTTP/1.1 503 Service Unavailable\r\n"
    assert folders(queue) == []


def test_what_waits_for_room_when_the_gateway_ends_is_taken_back(queue):
    queue.ok("restart", "--max-backlog-chunks", "5")
    queue.submit_lines(3)
    with serving(queue) as api, concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(
            api.post, "submissions", content=LINES, headers=TEXT, params={"lines": 1000, "wait_for_room": "1h"}
        )
        wait_until(lambda: queue.ok("status", "--json").json["room_waiting"] == 1, DEADLINE_S, "it waits")
        api.process.terminate()
        assert refused(waiting.result()) == (503, "unreachable")
    assert folders(queue) == []
    assert queue.ok("status", "--json").json["room_waiting"] == 0


def test_whoever_expects_to_be_refused_sends_nothing(queue):
    queue.ok("restart", "--max-backlog-chunks", "1")
    with serving(queue) as api:
        for _ in range(2):
            with request_of(api, "Content-Length: 2", "Expect: 100-continue") as connection:
                answer = connection.makefile("rb")
                status = answer.readline()
                if b"100" in status:
                    assert answer.readline() == b"\r\n"
                    connection.sendall(b"x\n")
                    assert answer.readline() == b"HTTP/1.1 201 Created\r\n"
        assert status == b"HTTP/1.1 429 Too Many Requests\r\n"
        reply = api.post("submissions", content=LINES, headers=TEXT)
        assert (refused(reply), reply.headers["retry-after"]) == ((429, "no_room"), "5")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            waiting = pool.submit(submit, api, LINES, wait_for_room="1h")
            wait_until(lambda: queue.ok("status", "--json").json["room_waiting"] == 1, DEADLINE_S, "it waits")
            queue.ok("complete", queue.reserve())
            assert waiting.result()["created"]
    queue.ok("stop")
    queue.ok("start", "--min-free-bytes", "1000000G")
    with serving(queue) as api:
        assert refused(api.post("submissions", content=LINES, headers=TEXT)) == (507, "no_room")


def test_only_a_producer_may_submit_and_everybody_read(queue):
    tokens = {role: queue.ok("token", "create", role, "--role", role).text for role in ("producer", "read-only")}
    with serving(queue, "--listen", "0.0.0.0:0") as api:
        assert refused(api.post("submissions", content=LINES)) == (401, "not_permitted")
        reader = {"Authorization": f"Bearer {tokens['read-only']}"}
        for headers in (reader, reader | {"Idempotency-Key": "k"}):
            assert refused(api.post("submissions", content=LINES, headers=headers)) == (403, "not_permitted")
        found = submit(api, LINES, headers={"Authorization": f"Bearer {tokens['producer']}"})
        api.headers.update(reader)
        assert chunks(api, found) == [LINES]


# --- out --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def large(queue, api):
    """A submission with small, large, empty and binary results; its id, and all of them."""
    parts = [b"a\n", os.urandom(300_000), b"", *(b"%d\n" % number for number in range(200)), b"\xff" * 2_500_000, b"z"]
    files = [("file", (str(number), part)) for number, part in enumerate(parts)]
    document = api.post("submissions", files=files, params={"per_file": True}).json()
    return consumed(queue, document), b"".join(parts)


def test_results_are_those_of_the_verb_in_each_format(queue, api, large):
    submission_id, expected = large
    reply = api.get(f"submissions/{submission_id}/results")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/octet-stream")
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.content == expected == queue.ok("results", submission_id).out
    printed = queue.ok("results", submission_id, "--json").json
    reply = api.get(f"submissions/{submission_id}/results", headers={"Accept": "application/json"})
    assert (reply.json(), reply.headers["content-type"]) == (printed, "application/json")
    reply = api.get(f"submissions/{submission_id}/results", headers={"Accept": "application/x-ndjson"})
    assert [json.loads(line) for line in reply.iter_lines()] == printed["results"]


def test_ranges_of_results_are_served_once_the_submission_has_ended(api, large):
    submission_id, expected = large
    path, size = f"submissions/{submission_id}/results", len(expected)
    head = api.head(path)
    assert (head.status_code, head.headers["content-length"], head.headers["accept-ranges"]) == (
        200,
        str(size),
        "bytes",
    )
    tag = head.headers["etag"]
    for first, last in (
        (0, 0),
        (0, size - 1),
        (1, 300_001),
        (300_001, 300_001),
        (300_500, 301_000),
        (size - 1, size + 9),
    ):
        reply = api.get(path, headers={"Range": f"bytes={first}-{last}", "If-Range": tag})
        assert (reply.status_code, reply.content) == (206, expected[first : last + 1])
        assert reply.headers["content-range"] == f"bytes {first}-{min(last, size - 1)}/{size}"
    assert api.get(path, headers={"Range": "bytes=-7"}).content == expected[-7:]
    assert api.get(path, headers={"Range": f"bytes={size - 7}-"}).content == expected[-7:]
    assert api.get(path, headers={"Range": f"bytes=-{2 * size}"}).content == expected
    for header in (f"bytes={size}-", "bytes=9-8", "bytes=-0"):
        reply = api.get(path, headers={"Range": header})
        assert (refused(reply), reply.headers["content-range"]) == ((416, "http"), f"bytes */{size}")
    for headers in ({"Range": "bytes=0-1,5-6"}, {"Range": "lines=1-2"}, {"Range": "bytes=0-0", "If-Range": '"other"'}):
        reply = api.get(path, headers=headers)
        assert (reply.status_code, reply.content) == (200, expected)
    assert api.get(path, headers={"If-None-Match": tag}).status_code == 304


def test_results_of_an_open_submission_are_refused_or_followed_as_they_come(queue, api):
    submission_id = submit(api, b"a\nb\n", lines=1)["submission_id"]
    path = f"submissions/{submission_id}/results"
    assert refused(api.get(path)) == (409, "not_finished")
    assert refused(api.get(f"submissions/{submission_id}/chunks/0/result")) == (409, "not_finished")
    head = api.head(path, params={"follow": True})
    assert (head.headers["accept-ranges"], "content-length" in head.headers) == ("none", False)
    with api.stream("GET", path, params={"follow": True}) as reply:
        pieces = reply.iter_raw()
        for expected in (b"A", b"B"):
            queue.ok("complete", queue.reserve(), "--result", "-", stdin=expected)
            assert next(pieces) == expected
        assert list(pieces) == []
    assert api.get(path).content == b"AB"


def test_following_ends_with_the_gateway_and_the_client_sees_that_it_was_not_all(queue):
    with serving(queue) as api:
        submission_id = submit(api, b"a\n")["submission_id"]
        with api.stream("GET", f"submissions/{submission_id}/results", params={"follow": True}) as reply:
            api.process.terminate()
            with pytest.raises(httpx.RemoteProtocolError):
                reply.read()


def test_a_dead_chunk_is_refused_or_left_out(queue, api):
    submission_id = submit(api, b"a\nb\nc\n", lines=1, on_dead="keep")["submission_id"]
    queue.ok("complete", queue.reserve(), "--result", "-", stdin=b"A")
    queue.ok("fail", queue.reserve(), "--no-retry", "--reason", "no such user")
    path = f"submissions/{submission_id}/results"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        followed = [
            pool.submit(api.get, path, params={"follow": True}, headers={"Accept": f"application/{kind}"})
            for kind in ("json", "x-ndjson", "octet-stream")
        ]
        queue.ok("complete", queue.reserve(), "--result", "-", stdin=b"C")
        document = followed[0].result().json()
        assert [result["text"] for result in document["results"]] == ["A"]
        assert (document["state"], document["error"]["code"]) == ("completed", "work_failed")
        lines = [json.loads(line) for line in followed[1].result().text.splitlines()]
        assert (lines[0]["text"], lines[1]["error"]["code"], len(lines)) == ("A", "work_failed", 2)
        with pytest.raises(httpx.RemoteProtocolError):
            followed[2].result()
    assert refused(api.get(path)) == (422, "work_failed")
    assert refused(api.get(f"submissions/{submission_id}/chunks/1/result")) == (422, "work_failed")
    assert api.get(path, params={"skip_dead": True}).content == b"AC"
    assert api.get(path, params={"skip_dead": True}, headers={"Range": "bytes=1-"}).content == b"C"
    queue.ok("dead", "requeue", submission_id)
    assert refused(api.get(path, params={"skip_dead": True})) == (409, "not_finished")


def test_results_are_shaped_as_the_verb_shapes_them(queue, api):
    table = {"Content-Type": "text/csv; header=present"}
    submission_id = consumed(queue, submit(api, b"n\n1\n2", headers=table, lines=1))
    path = f"submissions/{submission_id}/results"
    reply = api.get(path, params={"header_once": True, "end_lines": True}, headers={"Range": "bytes=0-1"})
    assert (reply.status_code, reply.content, reply.headers["accept-ranges"]) == (200, b"n\n1\n2\n", "none")


def test_one_chunk_and_one_result_are_served_with_ranges(queue, api, large):
    submission_id, _ = large
    for what in ("result", "content"):
        for index, expected in ((0, b"a\n"), (2, b""), (203, b"\xff" * 2_500_000), (204, b"z")):
            path = f"submissions/{submission_id}/chunks/{index}/{what}"
            assert api.get(path).content == expected
            assert api.head(path).headers["content-length"] == str(len(expected))
            part = api.get(path, headers={"Range": "bytes=1-2"})
            assert (part.status_code, part.content) == (
                (206, expected[1:3]) if len(expected) > 1 else (416, part.content)
            )
        assert refused(api.get(f"submissions/{submission_id}/chunks/205/{what}")) == (404, "not_found")
    for path in ("submissions/1/results", "submissions/1/attachment", "submissions/x/results"):
        assert refused(api.get(path)) == (404, "not_found")
    assert io.BytesIO(queue.ok("read", f"{submission_id}/203").out).read() == b"\xff" * 2_500_000


def test_curl_lines_of_the_manual_do_what_it_says(queue, api):
    section = PAGE.read_text().partition(".SS Content")[2].partition(".SS ")[0].replace("\\-", "-")
    lines = [line.replace("localhost:7480", api.base_url.netloc.decode()) for line in section.splitlines()]
    submitting, forming, packing, *reading = [line for line in lines if re.match("curl |gzip -c", line)]
    queue.file("access.log", LINES)
    queue.file("old.log.gz", gzip.compress(LINES))
    queue.file("notes.txt", b"read me")
    assert json.loads(queue.shell(submitting).out)["chunks"] == 3
    document = json.loads(queue.shell(forming).out)
    assert chunks(api, document) == [LINES, LINES]
    assert [json.loads(queue.shell(packing).out)["created"] for _ in range(2)] == [True, False]
    submission_id = consumed(queue, document)
    found = [queue.shell(f"ID={submission_id}; {line}").out for line in reading]
    assert (queue.folder / "results").read_bytes() == LINES * 2
    assert found[1:] == [LINES, LINES, b"read me"]
