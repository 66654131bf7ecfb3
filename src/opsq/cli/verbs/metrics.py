"""The verb metrics: prints the metrics of the daemon once, for monitoring that reads files.

It must not import anything of `opsq[gateway]`.
"""

from __future__ import annotations

from opsq import metrics as daemon_metrics
from opsq.cli.caller import Caller
from opsq.content.output_file import is_stdout, open_output
from opsq.documents.daemon import MetricsDocument
from opsq.options.option import option
from opsq.options.values import counted_key
from opsq.wire.messages import DaemonState, RulesState


def metrics(
    caller: Caller,
    by: str | None = option("--by KEY", "Also count each value of this metadata key.", counted_key),
    output: str | None = option("-o, --output FILE", "Write to this file: beside it first, then renamed; - is stdout."),
) -> None:
    """Print metrics of the daemon once, as Prometheus reads them; exits 4 when none answers.

    Run from a timer with `-o FILE.prom` in the folder of node_exporter's textfile collector, which then serves them.
    """
    with caller.connect() as daemon:
        asked = daemon_metrics.requests(daemon.next_id(), daemon.next_id(), by)
        state, rules = daemon.call(asked[0], DaemonState), daemon.call(asked[1], RulesState)
    found = list(daemon_metrics.families(state, rules, by))
    lines = daemon_metrics.text_lines(found)
    if output is None or is_stdout(output):
        caller.lines(lines)
    else:
        with open_output(output) as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
    caller.document(MetricsDocument.from_families(found))
