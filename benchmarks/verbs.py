"""Process start to exit of the verbs against `python -c pass`, with a running daemon; then those that start one.

The hot verbs are those that a shell loop calls for every chunk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from harness import Benchmark, Context, Row, alternate, main, paired_row, ratio_at_most
from ours import cli
from ours.client import connect
from ours.daemon import Daemon
from rivals import shell
from rivals.programs import TR

_RIVAL = "python -c pass"


def measure(context: Context) -> Iterator[Row]:
    """Each verb in turn with the empty Python; verbs that take a handle get a chunk of their own each time."""
    runs = context.size(20, 5)
    source = context.folder("text") / "source"
    shell.make_text(source, 100_000)
    with Daemon(context.folder("opsq")) as daemon:
        connect(daemon).close()
        run = functools.partial(cli.run, daemon.state_dir)
        submission = cli.printed(daemon.state_dir, "submit", "--bytes", "100", str(source))[0]

        def on_handles(verb: str, *options: str) -> Callable[[], float]:
            # Reserved beforehand, so that only the verb is timed; the warm-up takes one too.
            handles = iter(cli.printed(daemon.state_dir, "reserve", "-n", str(runs + 1)))
            return lambda: run(verb, next(handles), *options)

        hot: dict[str, Callable[[], float]] = {
            "reserve": lambda: run("reserve"),
            "read": on_handles("read"),
            "complete": on_handles("complete"),
            "fail": on_handles("fail"),
            "release": on_handles("release"),
            "extend": on_handles("extend"),
        }
        other: dict[str, Callable[[], float]] = {
            "status": lambda: run("status"),
            "list": lambda: run("list"),
            "show": lambda: run("show", submission),
            "explain": lambda: run("explain", "OldestFirst"),
            "--help": lambda: run("--help"),
        }
        for verbs, bound, kind in ((hot, 6.0, "hot verb"), (other, 10.0, "verb")):
            for name, verb in verbs.items():
                context.say(f"opsq {name}")
                taken, empty = alternate(runs, verb, shell.empty_python)
                what = f"{kind}, start to exit: opsq {name}"
                yield paired_row(what, "s", taken, empty, ratio_at_most(bound), rival_name=_RIVAL)
    yield from _starting(context)


def _starting(context: Context) -> Iterator[Row]:
    """Each start with no daemon there; what stops it is not timed."""

    def started(state_dir: Path) -> float:
        taken = cli.run(state_dir, "start")
        cli.run(state_dir, "stop")
        return taken

    def worked() -> float:
        state_dir = context.folder("run")
        taken = cli.filtered(state_dir, None, state_dir / "out", "run", str(source), "--", TR.find(), "a-z", "A-Z")
        if (state_dir / "out").stat().st_size != source.stat().st_size:
            raise RuntimeError("opsq run has lost some of its output")
        cli.run(state_dir, "stop")
        return taken

    source = context.folder("small") / "source"
    shell.make_text(source, 10_000)
    used = context.folder("used")
    for what, start, bound in (
        ("opsq start until it is ready, an empty folder", lambda: started(context.folder("new")), 12.0),
        ("opsq start until it is ready, a queue that is there", lambda: started(used), 12.0),
        ("opsq run of a small file with a daemon of its own, start to exit", worked, 25.0),
    ):
        context.say(what)
        taken, empty = alternate(context.size(20, 5), start, shell.empty_python)
        yield paired_row(what, "s", taken, empty, ratio_at_most(bound), rival_name=_RIVAL)


BENCHMARK = Benchmark("verbs", __doc__ or "", measure, (TR,))

if __name__ == "__main__":
    main(BENCHMARK)
