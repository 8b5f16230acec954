"""Tests of ``dgym llm`` and ``dgym init-llm-config`` from the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.openai_server import Answer, FakeOpenAI
from tests.support.command import dgym as run_dgym

KEY = "sk-proj-0123456789abcdef"


@pytest.fixture
def dgym(tmp_path):
    def dgym(*arguments, **environment):
        home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "NO_COLOR": "1", "TMPDIR": str(tmp_path)}
        return run_dgym(*arguments, cwd=tmp_path, environment={**home, **environment})

    return dgym


@pytest.fixture
def server():
    with FakeOpenAI(api_key=KEY).in_thread() as server:
        yield server


def test_a_new_configuration_can_be_written_and_checked(dgym, server, tmp_path):
    missing = dgym("llm", "check")
    assert missing.returncode == 2
    assert "`dgym init-llm-config` writes a template" in missing.stderr

    written = dgym("init-llm-config")
    path = tmp_path / ".config" / "dgym" / "llm.yaml"
    assert written.stdout == f"Wrote {path}. Edit it, then try it with: dgym llm check\n"
    assert path.stat().st_mode & 0o777 == 0o600
    again = dgym("init-llm-config")
    assert (again.returncode, "--force overwrites it" in again.stderr) == (2, True)
    assert dgym("init-llm-config", "--force").returncode == 0

    listed = dgym("llm", "list")
    assert "OPENAI_API_KEY, which is not set or empty; export it" in listed.stdout
    assert "gpt-4.1 at https://api.openai.com/v1" in dgym("llm", "list", OPENAI_API_KEY=KEY).stdout

    path.write_text(f"mine: {{model: debugger, endpoint: '{server.url}', api_key: '${{MY_KEY}}', output_price: 1}}\n")
    checked = dgym("llm", "check", "mine", MY_KEY=KEY)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.startswith(f"mine  ok      {server.url}: answered in ")
    assert "calls tools" in checked.stdout
    assert ", price 0.0000" in checked.stdout


def test_another_directory_is_reported_with_the_variable_to_set(dgym, tmp_path):
    written = dgym("init-llm-config", "conf")
    assert f"export LLM_CONFIG_FILE_PATH={tmp_path}/conf/llm.yaml" in written.stdout
    assert "gpt-4.1" in dgym("llm", "list", LLM_CONFIG_FILE_PATH="conf/llm.yaml").stdout
    assert "gpt-4.1" in dgym("llm", "list", "--llm-config", "conf/llm.yaml").stdout


def test_everything_that_is_wrong_is_explained_and_no_key_shown(dgym, server, tmp_path):
    (tmp_path / "llm.yaml").write_text(
        f"good: {{model: debugger, endpoint: '{server.url}', api_key: {KEY}, tags: [local]}}\n"
        f"key: {{model: debugger, endpoint: '{server.url}', api_key: sk-wrong-0123456789}}\n"
        f"name: {{model: nothing, endpoint: '{server.url}', api_key: {KEY}}}\n"
        f"path: {{model: debugger, endpoint: '{server.url}/more', api_key: {KEY}}}\n"
        "away: {model: debugger, endpoint: 'http://127.0.0.1:1/v1'}\n"
        "typo: {modle: debugger}\n"
    )
    done = dgym("llm", "check", "--llm-config", "llm.yaml")
    assert done.returncode == 1
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "answered in" in lines["good"]
    assert "not authorized: 401 Incorrect API key provided: *****.; check api_key" in lines["key"]
    assert "not found: 404 The model 'nothing' does not exist; check model" in lines["name"]
    assert "not found: 404" in lines["path"]
    assert "connection failed" in lines["away"]
    assert "has no setting 'modle'; did you mean model?" in lines["typo"]
    assert "0123456789" not in done.stdout + done.stderr

    alone = dgym("llm", "check", "typo", "--llm-config", "llm.yaml")
    assert (alone.returncode, alone.stdout) == (2, "")
    unknown = dgym("llm", "check", "goood", "--llm-config", "llm.yaml")
    assert (unknown.returncode, "did you mean 'good'?" in unknown.stderr) == (2, True)
    tagged = dgym("llm", "list", "--llm-config", "llm.yaml", "--tag", "local", "--output", "json")
    assert [one["name"] for one in json.loads(tagged.stdout)] == ["good"]


def test_every_endpoint_is_checked(dgym, tmp_path):
    with FakeOpenAI().in_thread() as one, FakeOpenAI(faults=["no_quota"]).in_thread() as two:
        (tmp_path / "llm.yaml").write_text(f"m: {{model: debugger, endpoints: ['{one.url}', '{two.url}']}}\n")
        done = dgym("llm", "check", "m", "--llm-config", "llm.yaml", "--output", "json")
    assert done.returncode == 1
    assert [(each["endpoint"], each["ok"]) for each in json.loads(done.stdout)] == [(one.url, True), (two.url, False)]
    assert "no quota left; check plan and billing" in done.stdout


def test_a_model_that_calls_no_tool_gets_advice(dgym, tmp_path):
    with FakeOpenAI(script=[Answer(text="I am ready.")], usage=False).in_thread() as server:
        (tmp_path / "llm.yaml").write_text(f"m: {{model: m, endpoint: '{server.url}'}}\n")
        done = dgym("llm", "check", "--llm-config", "llm.yaml")
    assert done.returncode == 0
    assert "reports no tokens, so that counts are estimates, but did not call a tool" in done.stdout
    assert "set tool_calling: text" in done.stdout


def test_checking_the_model_human_sends_no_request(dgym):
    assert dgym("llm", "check", "human").stdout == "human: you answer yourself, at the terminal\n"


def test_the_fake_server_runs_as_a_program(tmp_path):
    script = Path(__file__).parents[2] / "fakes" / "openai_server.py"
    process = subprocess.Popen(
        [sys.executable, script, "--port", "0"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        assert process.stdout.readline().startswith("http://127.0.0.1:")
    finally:
        process.terminate()
        process.communicate(timeout=90)
