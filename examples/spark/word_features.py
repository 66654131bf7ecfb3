#!/usr/bin/env python3
"""The external program of features.py: reads JSON lines with `id` and `text`, and writes JSON lines of features.

It knows nothing of Spark or opsq, and could be in any language.
"""

import json
import sys

for line in sys.stdin:
    row = json.loads(line)
    words = row["text"].split()
    print(json.dumps({"id": row["id"], "words": len(words), "longest": max(map(len, words), default=0)}))
