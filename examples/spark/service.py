"""Shows how to query a service with a limit on concurrent calls: five at a time, however many executors there are.

Usage: service.py URL INPUT.parquet OUTPUT.parquet [LIMIT]

URL gets the value of the column `place` as its query and answers with a line of text.
"""

import os
import sys
import urllib.parse
import urllib.request
import uuid

import opsq.spark

STATE_DIR = os.environ.get("OPSQ_STATE_DIR", os.path.expanduser("~/.local/state/opsq"))
url, source, target = sys.argv[1:4]
limit = int(sys.argv[4]) if len(sys.argv) > 4 else 5

# %% The metadata of the submission names the service, so that the limit applies to everything that uses it.
spark = opsq.spark.build_session("local[*]")
key = f"service-{uuid.uuid4()}"
writer = spark.read.parquet(source).write.format("opsq").mode("append").option("stateDir", STATE_DIR)
writer.options(rowsPerChunk=20, idempotencyKey=key).option("meta.service", "geo").save()
submission = opsq.spark.submission_of(key, state_dir=STATE_DIR)


# %% An exception of the function (a timeout, a refusal) fails its chunk, which is retried after a pause.
def ask(frame):
    """Add the answer of the service to each row."""
    answers = []
    for place in frame["place"]:
        query = f"{url}?{urllib.parse.quote(place)}"
        with urllib.request.urlopen(query, timeout=30) as answer:  # noqa: S310  # the user chose the URL
            answers.append(answer.read().decode().strip())
    return frame.assign(answer=answers)


opsq.spark.consume(
    spark,
    function=ask,
    frames="pandas",
    strategy=f"MaxSimultaneous(service, {limit})",
    submission=submission,
    state_dir=STATE_DIR,
)

# %%
opsq.spark.results(spark, submission, state_dir=STATE_DIR).write.parquet(target)
