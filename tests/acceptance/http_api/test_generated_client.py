"""A client that a generator of note makes of the OpenAPI document works."""

import subprocess
import sys
from pathlib import Path

import pytest

from needs import lack

GENERATOR = "openapi-python-client==0.29.1"
SCRIPT = Path(__file__).parent / "generated_client.py"
DEADLINE_S = 600
NDJSON = "application/x-ndjson"


def run(*command, **options):
    """Run a program; what it gave."""
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, **options)


@pytest.fixture
def python(tmp_path):
    """Python with the generator, which has other pins than opsq, and so an environment of its own."""
    folder = tmp_path / "venv"
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    installed = run(python, "-m", "pip", "install", "--quiet", "--no-compile", GENERATOR)
    if installed.returncode != 0:
        lack(f"{GENERATOR}, which pip could not install here:\n{installed.stderr}")
    return python


def test_generated_client_lists_works_waits_and_shows(queue, api, python, tmp_path):
    config = tmp_path / "config.yaml"
    streams = "".join(f"  {each}: application/octet-stream\n" for each in ("text/plain", "text/csv", NDJSON))
    config.write_text(f"post_hooks: []\ncontent_type_overrides:\n{streams}")
    made = run(
        python.parent / "openapi-python-client",
        *("generate", "--url", f"{api.base_url}openapi.json", "--config", config),
        *("--meta", "none", "--output-path", tmp_path / "opsq_client", "--fail-on-warning"),
    )
    assert made.returncode == 0, made.stdout + made.stderr
    submission_id = queue.submit_lines(2, "-m", "tenant=acme")
    token = queue.ok("token", "create", "worker", "--role", "consumer").text
    url = f"http://{api.base_url.netloc.decode()}"
    ran = run(python, SCRIPT, url, token, env={"PYTHONPATH": str(tmp_path)})
    assert (ran.stdout, ran.stderr, ran.returncode) == (f"{submission_id}\n", "", 0)
    assert queue.ok("results", submission_id).text == "result 0\nresult 1"
