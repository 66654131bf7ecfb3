"""A program that finds more work: lists a folder, and has each folder in it listed by a submission of its own.

    opsq consume --until-empty -- python3 folder.py

The chunk is the path of a folder. A line of JSON in the file OPSQ_THEN becomes a submission in the commit that
completes this chunk; if the program fails, it becomes nothing. See FOLLOW-UPS in opsq-complete(1).
"""

import json
import os
import sys

folder = sys.stdin.read()
with open(os.environ["OPSQ_THEN"], "a") as then:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            new = {"chunks": [entry.path], "metadata": {"job": os.environ["OPSQ_META_JOB"]}, "title": entry.name[:80]}
            print(json.dumps(new), file=then)
        elif entry.is_file(follow_symlinks=False):
            print(entry.stat().st_size, entry.path)
