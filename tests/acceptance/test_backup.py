"""opsq backup: a copy that a daemon can start on."""


def test_daemon_starts_on_the_copy(queue):
    submission = queue.submit_lines(2)
    document = queue.ok("backup", "copy.sqlite", "--json").json
    copy = queue.folder / "copy.sqlite"
    assert document == {"path": str(copy), "bytes": copy.stat().st_size}
    queue.ok("stop")
    (queue.state_dir / "opsq.sqlite").unlink()
    copy.rename(queue.state_dir / "opsq.sqlite")
    queue.ok("start")
    assert queue.ok("show", submission, "--json").json["waiting"] == 2


def test_existing_file_is_never_overwritten(queue):
    queue.file("copy.sqlite", b"precious")
    ran = queue("backup", "copy.sqlite")
    assert ran.status in {2, 5}
    assert (queue.folder / "copy.sqlite").read_bytes() == b"precious"


def test_unreachable_daemon_is_exit_4(opsq):
    assert opsq("backup", "copy.sqlite").status == 4
