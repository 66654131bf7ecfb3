"""What `opsq submit --wait` has said when it is interrupted, without a daemon."""

from __future__ import annotations

import json

import pytest

from opsq.cli import submission_end
from opsq.cli.caller import Caller
from opsq.cli.verbs import submit
from opsq.content.result_shaping import ResultShaping
from opsq.documents.submissions import SubmitDocument


def test_interrupted_wait_has_told_the_id_in_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Without --json it was printed before the wait began."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(submission_end, "wait_for", interrupted)
    document = SubmitDocument("7", created=True, chunks=1, bytes=2)
    with pytest.raises(KeyboardInterrupt):
        submit._finish(Caller({"json": True}, frozenset()), document, None, ResultShaping())
    said = capsys.readouterr()
    assert json.loads(said.out) == {"submission_id": "7", "created": True, "chunks": 1, "bytes": 2}
    assert said.err == ""
