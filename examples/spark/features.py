"""Shows feature extraction over Parquet with an external program: a failure costs one chunk one attempt, not a stage.

Usage: features.py INPUT.parquet OUTPUT.parquet

The same from a shell:
    opsq spark run INPUT.parquet --rows-per-chunk 1000 -o OUTPUT.parquet -- ./word_features.py
"""

import os
import sys
import uuid
from pathlib import Path

import opsq.spark

PROGRAM = Path(__file__).with_name("word_features.py")
STATE_DIR = os.environ.get("OPSQ_STATE_DIR", os.path.expanduser("~/.local/state/opsq"))
"""Executors do not have our environment, so name the daemon; on other machines use `address="HOST:PORT"` and a
token."""

# %% A session on this machine; `build_session("spark://HOST:PORT")` uses a cluster.
spark = opsq.spark.build_session("local[*]")
source, target = sys.argv[1:]

# %% Rows become chunks of 1000 JSON lines.
key = f"features-{uuid.uuid4()}"
rows = spark.read.parquet(source).select("id", "text")
writer = rows.write.format("opsq").mode("append").option("stateDir", STATE_DIR)
writer.options(rowsPerChunk=1000, chunkFormat="jsonl", idempotencyKey=key).save()
submission = opsq.spark.submission_of(key, state_dir=STATE_DIR)

# %% Executors run the program for each chunk.
summary = opsq.spark.consume(
    spark, command=[sys.executable, str(PROGRAM)], strategy="OldestFirst", submission=submission, state_dir=STATE_DIR
)
print(f"{summary.completed} chunks in {summary.seconds:.1f} s")

# %% Its output is a DataFrame.
reader = spark.read.format("opsq").option("stateDir", STATE_DIR).schema("id BIGINT, words INT, longest INT")
reader.load(str(submission)).write.parquet(target)
