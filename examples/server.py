"""A server: a program that opsq starts once per slot, not once per chunk. This one counts the words of each chunk.

    opsq consume -j2 --until-empty --server frames -- python3 server.py

Each chunk comes as a line `LENGTH SUBMISSION/INDEX ATTEMPT JSON` and LENGTH bytes. Each answer is a line `LENGTH
STATUS` and LENGTH bytes: the result, or, with a STATUS other than 0, the reason of the failure. See opsq-consume(1).
"""

import json
import sys
from collections import Counter


def work(chunk: bytes, metadata: dict[str, int | str]) -> bytes:
    """Return one line of JSON per chunk."""
    words = Counter(chunk.decode().split())
    return json.dumps({"kind": metadata.get("kind"), "words": words}).encode() + b"\n"


chunks, answers = sys.stdin.buffer, sys.stdout.buffer
for line in chunks:
    length, name, attempt, more = line.split(b" ", 3)
    chunk = chunks.read(int(length))
    try:
        status, answer = 0, work(chunk, json.loads(more)["metadata"])
    except ValueError as error:
        status, answer = 1, f"{name.decode()}, attempt {int(attempt) + 1}: {error}".encode()
    answers.write(b"%d %d\n" % (len(answer), status) + answer)
    answers.flush()
