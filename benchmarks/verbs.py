"""Process start to exit of the verbs against `python -c pass`, with a running daemon.

The hot verbs are those that a shell loop calls for every chunk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from harness import Benchmark, Context, Row, alternate, main, paired_row, ratio_at_most
from ours import cli
from ours.client import connect
from ours.daemon import Daemon
from rivals import shell


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
                yield paired_row(what, "s", taken, empty, ratio_at_most(bound), rival_name="python -c pass")


BENCHMARK = Benchmark("verbs", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
