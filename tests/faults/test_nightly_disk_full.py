"""nightly.sh of examples/ on a full disk: it says so, nothing is half there, and the next run continues."""

from __future__ import annotations

from pathlib import Path

from daemons import end, settings_of
from nightly import SILENCE, Cron

REPORT = b"".join(b"%06d\n" % number for number in range(100_000))


def test_queue_without_room_refuses_the_night_and_takes_it_later(small_disk: Path | None, runtime_dir: Path) -> None:
    if small_disk is None:
        return
    cron = Cron(small_disk, runtime_dir)
    large = runtime_dir / "reports/3.csv"
    large.write_bytes(REPORT * 30)
    try:
        status, out, err = cron.run()
        assert (status, out) == (6, "")
        assert str(small_disk) in err
        assert cron.results == {}
        large.write_bytes(REPORT)
        assert cron.run() == SILENCE
        assert cron.results == {"2026-10-25.txt": b"a\nb\nc\n" + REPORT}
    finally:
        end(settings_of(small_disk))


def test_output_without_room_is_not_half_there_and_is_written_later(small_disk: Path | None, runtime_dir: Path) -> None:
    """The work is not done again."""
    if small_disk is None:
        return
    state_dir = runtime_dir / "s"
    cron = Cron(state_dir, runtime_dir)
    (runtime_dir / "out").rmdir()
    (runtime_dir / "out").symlink_to(small_disk)
    (runtime_dir / "reports/3.csv").write_bytes(REPORT)
    others = small_disk / "others"
    others.write_bytes(bytes((8 << 20) - len(REPORT) // 2))
    try:
        status, out, err = cron.run()
        assert (status, out) == (6, "")
        assert "2026-10-25.txt" in err
        assert list(cron.results) == ["others"]
        others.unlink()
        cron.program("sort", "exit 9")
        assert cron.run() == SILENCE
        assert cron.results == {"2026-10-25.txt": b"a\nb\nc\n" + REPORT}
    finally:
        end(settings_of(state_dir))
