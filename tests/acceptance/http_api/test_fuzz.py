"""A fuzzer that knows the OpenAPI document finds no error of the server, and no answer that is not in it."""

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
DEADLINE_S = 600


def test_fuzzer_finds_no_server_error_and_no_undocumented_answer(queue, api, tmp_path):
    queue.submit_lines(3, "-m", "tenant=acme")
    program = Path(sys.executable).parent / "schemathesis"
    url = f"{str(api.base_url).rstrip('/')}/openapi.json"
    done = subprocess.run(
        [program, "--config-file", HERE / "fuzz.toml", "run", url, "--no-color", "--generation-database", "none"],
        env=os.environ | {"PYTHONPATH": str(HERE)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    said = "\n".join(line[:400] for line in done.stdout.splitlines())
    assert done.returncode == 0, said + done.stderr
    selected, tested = (int(re.search(rf"{name}: (\d+)", said)[1]) for name in ("Selected", "Tested"))
    assert selected == tested > 20
    assert api.get("status").json()["state"] == "running"
