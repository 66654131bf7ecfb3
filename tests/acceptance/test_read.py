"""opsq read: the bytes of a chunk, unchanged."""

import base64

CONTENT = b"\0\xff\r\n no end"


def test_bytes_of_a_reserved_chunk_come_unchanged(queue):
    queue.ok("submit", "-", "--per-file", stdin=CONTENT)
    assert queue.ok("read", queue.reserve()).out == CONTENT


def test_chunk_can_be_named_without_a_token(queue):
    submission = queue.submit_lines(2)
    assert queue.ok("read", f"{submission}/1").out == b"1\n"


def test_output_writes_a_file(queue):
    submission = queue.ok("submit", "-", "--per-file", stdin=CONTENT).text
    queue.ok("read", f"{submission}/0", "-o", "out")
    assert (queue.folder / "out").read_bytes() == CONTENT


def test_json_holds_text_or_base64(queue):
    submission = queue.ok("submit", "-", "--per-file", stdin=CONTENT).text
    document = queue.ok("read", "--json", f"{submission}/0").json
    assert base64.b64decode(document["base64"]) == CONTENT
    assert (document["submission_id"], document["index"], document["bytes"]) == (submission, 0, len(CONTENT))


def test_unknown_chunks_are_exit_3_and_bad_names_exit_2(queue):
    submission = queue.submit_lines(1)
    assert queue("read", f"{submission}/1").status == 3
    assert queue("read", "999/0").status == 3
    assert queue("read", "x").status == 2
    assert queue("read", f"{submission}/0@zz").status == 2
    assert queue("read").status == 2
    assert queue("read", "1/0", "1/1").status == 2
