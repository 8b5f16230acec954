"""Tests of ``dgym agent show``: an episode sends the same request as the command prints."""

import json
import textwrap

import pytest

from tests.fakes.openai_server import Answer, Call, FakeOpenAI
from tests.support.bare_python import bare_python
from tests.support.command import dgym as run_dgym

PAGE = (60, 80)
"""Number of lines, and of characters in each line."""
TASK = """
apiVersion: dgym.dev/v1alpha1
kind: DebugTask
metadata: {name: calc}
spec:
  instructions: "add() is wrong: 2 + 3 ≠ 5."
  entrypoint: python check.py
  source:
    files:
      - {path: calc.py, content: "def add(a, b):\\n    return a - b\\n"}
      - {path: check.py, content: "from calc import add\\nif add(2, 3) != 5: raise SystemExit('it is -1')\\n"}
"""


@pytest.fixture
def dgym(tmp_path):
    """Runs ``dgym`` with the model ``m`` of a server."""
    (tmp_path / "task.yaml").write_text(TASK)

    def command(server, *arguments, **settings):
        model = {"model": "scripted", "endpoint": server.url, "api_key": "sk-very-secret", **settings}
        (tmp_path / "llm.yaml").write_text(json.dumps({"m": model}))
        here = ("--sandbox", "none", "--python", bare_python(), "--llm-config", "llm.yaml")
        return run_dgym(*arguments, *here, cwd=tmp_path)

    return command


@pytest.mark.parametrize(
    ("agent", "settings", "fields"),
    [
        ("debug_agent", {}, ()),
        ("rewrite_agent", {"generate_kwargs": {"top_p": 0.9}}, ("-p", "agent.temperature=0.5", "-p", "agent.seed=3")),
        ("debug_5_agent", {"tool_calling": "text"}, ()),
        ("bash_agent", {"api": "responses"}, ()),
        ("bash_agent", {"cache_control": True}, ()),
        ("bash_agent", {"system_prompt_support": False, "headers": {"X-Team": "secret-team"}}, ()),
    ],
)
def test_the_body_is_what_an_episode_sends_byte_for_byte(dgym, agent, settings, fields):
    fields = ("-p", "agent.model=m", *fields)
    with FakeOpenAI(script=[Answer(calls=(Call("submit"),))]).in_thread() as server:
        shown = dgym(server, "agent", "show", agent, "--task", "task.yaml", "--output", "json", *fields, **settings)
        assert shown.returncode == 0, shown.stderr
        assert server.received == [], "nothing is sent"
        ran = dgym(server, "run", "task.yaml", "--agent", agent, *fields, **settings)
        assert server.received, ran.stderr
    assert shown.stdout == server.received[0].raw.decode() + "\n"
    assert "secret" not in shown.stdout


@pytest.mark.parametrize("agent", ["debug_agent", "rewrite_agent", "debug_5_agent", "bash_agent"])
def test_a_prompt_fits_on_one_page(dgym, agent):
    with FakeOpenAI().in_thread() as server:
        shown = dgym(server, "agent", "show", agent, "--task", "task.yaml", "-p", "agent.model=m")
    assert shown.returncode == 0, shown.stderr
    prompt = shown.stdout.partition("── tool ")[0]
    assert "You are a debugging agent." in prompt
    assert "add() is wrong: 2 + 3 ≠ 5." in prompt
    assert ("it is -1" in prompt) == (agent != "bash_agent")
    lines, characters = PAGE
    assert sum(len(textwrap.wrap(line, characters)) or 1 for line in prompt.splitlines()) <= lines


def test_tools_and_other_fields_are_shown_without_a_model(dgym):
    with FakeOpenAI().in_thread() as server:
        shown = dgym(server, "agent", "show", "bash_agent", "--task", "task.yaml", "-p", "agent.seed=3")
    assert shown.returncode == 0, shown.stderr
    assert [line for line in shown.stdout.splitlines() if line.startswith("──")] == [
        *("── system ──", "── user ──", "── tool bash ──", "── tool submit ──", "── other fields ──"),
    ]
    assert '{"model": "MODEL", "seed": 3}' in shown.stdout


@pytest.mark.parametrize("settings", [{"api": "responses"}, {"cache_control": True}])
def test_every_form_of_a_request_is_shown(dgym, settings):
    model = ("-p", "agent.model=m")
    with FakeOpenAI().in_thread() as server:
        shown = dgym(server, "agent", "show", "bash_agent", "--task", "task.yaml", *model, **settings)
    assert shown.returncode == 0, shown.stderr
    assert [line for line in shown.stdout.splitlines() if line.startswith("──")] == [
        *("── system ──", "── user ──", "── tool bash ──", "── tool submit ──", "── other fields ──"),
    ]
    assert "\nadd() is wrong: 2 + 3 ≠ 5." in shown.stdout


def test_a_request_that_cannot_be_shown_is_reported_with_the_reason(dgym, tmp_path):
    (tmp_path / "broken.yaml").write_text(f"{TASK}  setupCommands: [exit 3]\n")
    with FakeOpenAI().in_thread() as server:
        solution = dgym(server, "agent", "show", "solution")
        unknown = dgym(server, "agent", "show", "debug_agent", "--task", "nothing")
        person = dgym(server, "agent", "show", "debug_agent", "-p", "agent.model=human")
        broken = dgym(server, "agent", "show", "debug_agent", "--task", "broken.yaml")
    assert (solution.returncode, unknown.returncode, person.returncode) == (2, 2, 2)
    assert "does not use a model" in solution.stderr
    assert "no such file and no bundled task" in unknown.stderr
    assert "the model human does not get requests" in person.stderr
    assert (broken.returncode, broken.stdout) == (1, "")
    assert "task calc: no request was made: SetupFailed: setup command 'exit 3'" in broken.stderr
