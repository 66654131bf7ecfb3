"""What a user writes with the client that openapi-python-client has made; test_generated_client.py runs it.

It must not import opsq: it runs where only the client is.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from opsq_client import AuthenticatedClient
from opsq_client.api.default import (
    complete_chunks,
    list_submissions,
    reserve_chunks,
    resume,
    show_submission,
    status,
)
from opsq_client.models import (
    CompleteBody,
    DoneChunk,
    ListSubmissionsStateItem,
    PauseBody,
    Problem,
    ReserveBody,
)

url, token = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=token, timeout=180)
assert status.sync(client=client).state == "running"

[shape] = list_submissions.sync(
    client=client, state=[ListSubmissionsStateItem.OPEN], metadata=["tenant=acme"]
).submissions
assert (shape.state, shape.waiting, shape.metadata["tenant"]) == ("open", 2, "acme")

with ThreadPoolExecutor() as pool:
    waiting = pool.submit(show_submission.sync, shape.submission_id, client=client, wait=180)
    reserved = reserve_chunks.sync(client=client, body=ReserveBody(count=2, strategy="OldestFirst", lease_s=60))
    done = [DoneChunk(handle=chunk.handle, text=f"result {chunk.index}\n") for chunk in reserved.chunks]
    assert complete_chunks.sync(client=client, body=CompleteBody(chunks=done)).count == 2
    ended = waiting.result()
assert (ended.state, ended.completed, ended.attempts) == ("completed", 2, [])

problem = show_submission.sync("1", client=client)
assert isinstance(problem, Problem)
assert (problem.status, problem.code) == (404, "not_found")
problem = resume.sync(client=client, body=PauseBody(all_=True, operator=True))
assert (problem.status, problem.code) == (403, "not_permitted")
print(shape.submission_id)
