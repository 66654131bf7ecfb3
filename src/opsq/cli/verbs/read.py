"""The verb read: the bytes of a chunk, read straight from the content store.

It is a hot verb: it must not import anything that is slow to load.
"""

from __future__ import annotations

import sys

from opsq.cli.caller import Caller
from opsq.cli.submission_content import reader_of
from opsq.errors import InvalidHandle
from opsq.ids import parse_handle
from opsq.options.option import argument, option


def read(
    caller: Caller,
    chunk: str = argument("HANDLE", "The chunk: a handle, or SUBMISSION/INDEX."),
    output: str | None = option("-o, --output FILE", "Write to this file instead: beside it first, then renamed."),
) -> None:
    """Write the bytes of a reserved chunk to stdout."""
    with caller.connect() as daemon:
        submission_id, index = _chunk_of(chunk.strip())
        reader = reader_of(daemon, submission_id)
        found = reader.read(index)
        input_range = reader.input_of(index) if caller.is_json else None
        if output is not None:
            from opsq.content.output_file import is_stdout, open_output

            if is_stdout(output):
                output = None
            else:
                with open_output(output) as file:
                    file.write(found)
    if caller.is_json:
        from opsq.documents.shape import text_or_base64
        from opsq.documents.submissions import ReadDocument, input_fields

        shown = input_fields(input_range) | ({"path": output} if output else text_or_base64(found))
        caller.document(ReadDocument(str(submission_id), index, len(found), **shown))
    elif output is None:
        sys.stdout.buffer.write(found)
        sys.stdout.buffer.flush()


def _chunk_of(text: str) -> tuple[int, int]:
    """Submission and index of a handle, or of the part of one before the @."""
    if "@" in text:
        handle = parse_handle(text)
        return handle.submission_id, handle.index
    submission, _, index = text.partition("/")
    if submission.isascii() and submission.isdigit() and index.isascii() and index.isdigit():
        return int(submission), int(index)
    raise InvalidHandle(
        f"{text!r} is not a chunk.", hint="Give a handle as `opsq reserve` prints it, or SUBMISSION/INDEX."
    )
