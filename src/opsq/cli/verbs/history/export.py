"""The verb history export: events as files for other programs.

How the files are written is not known here: `output.event_export` does it.
"""

from __future__ import annotations

from typing import Literal

from opsq.cli.caller import Caller
from opsq.cli.output import event_export
from opsq.cli.stopped_queue import asked
from opsq.documents.asking import events
from opsq.documents.chunk_inputs import ChunkInputs
from opsq.documents.submissions import ExportDocument
from opsq.errors import UsageError
from opsq.options import values
from opsq.options.conditions import SUBJECT, EventConditions
from opsq.options.option import COUNT, Whole, option, options
from opsq.units import counted


def export(
    caller: Caller,
    conditions: EventConditions = options(EventConditions),
    subject: str | None = SUBJECT,
    output: str = option("-o, --output FILE|FOLDER|-", "A file, an existing folder, or - for stdout.", default="-"),
    format_: Literal["jsonl", "csv", "parquet"] | None = option(
        "--format jsonl|csv|parquet",
        "JSON lines, CSV or Parquet; by default from the file name, else JSON lines.",
    ),
    rotate: int | None = option("--rotate N", "Start a new file in the folder after this number of rows.", COUNT),
    after: int | None = option("--after SEQ", "Only rows after this one.", Whole(0)),
    after_last: bool = option("--after-last", "Only rows after the last one in the folder's files."),
) -> None:
    """Write events, oldest first, to a file, to stdout, or to files in a folder, named by the rows they hold.

    Files are written under another name and then renamed, so that no reader of the folder sees an incomplete one.
    """
    values.exclude(after=after, after_last=after_last)
    where = conditions.as_filter(subject)
    target = event_export.target(output, format_, rotate, is_going_on=after_last)
    if caller.is_json and target.is_stdout:
        raise UsageError("--json and an export to stdout cannot be combined.", hint="Give --output.")
    with asked(caller) as daemon, caller.progress("rows") as progress, target:
        task = progress.add_task("exporting", total=None) if progress else None
        inputs = ChunkInputs(daemon)
        for page in events(daemon, where, after=target.last_seq if after_last else after):
            target.write(page.rows, event_export.Known(page.metadata, inputs.of_events(page.rows), page.titles))
            if progress:
                progress.update(task, completed=target.rows_count)
    if not target.is_stdout:
        caller.document(ExportDocument(target.rows_count, target.files, target.last_seq))
        caller.remark(f"{counted(target.rows_count, 'row')} in {counted(len(target.files), 'file')}.")
