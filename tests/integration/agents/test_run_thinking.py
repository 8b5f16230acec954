"""Tests of ``dgym run`` with agents that use a model: benchmarks, repositories, and a person in the model's place."""

import json
import os
from functools import partial

import pexpect
import pytest

from tests.fakes.openai_server import Answer, Call, FakeOpenAI
from tests.support.bare_python import bare_python
from tests.support.calc import BUGGY
from tests.support.command import DGYM, dgym

TIMEOUT_SECONDS = 100
REPAIR = Answer(
    reasoning="The sign is wrong.",
    calls=(Call("rewrite", {"path": "calc.py", "start": 2, "end": 2, "new_code": "    return a + b"}),),
)
SUBMIT = Answer(calls=(Call("submit"),))


def here():
    return "--sandbox", "none", "--python", bare_python()


@pytest.fixture
def repository(tmp_path):
    """A repository of a user, with a secret file and a protected test."""
    path = tmp_path / "repository"
    path.mkdir()
    (path / "calc.py").write_text(BUGGY)
    (path / "check.py").write_text("from calc import add\nassert add(2, 3) == 5\n")
    (path / "secret.txt").write_text("the secret\n")
    (path / ".debugignore").write_text("secret.txt\n")
    (path / ".debugreadonly").write_text("check.py\n")
    return path


@pytest.fixture
def run(tmp_path):
    """``dgym run`` with the model ``m`` of a server."""

    def command(server, *arguments, stdin="", prices=None):
        config = tmp_path / "llm.yaml"
        model = {"model": "scripted", "endpoint": server.url, "api_key": "k", **(prices or {})}
        config.write_text(json.dumps({"m": model}))
        options = (*here(), "--llm-config", config, "-p", "agent.model=m")
        return dgym("run", *arguments, *options, cwd=tmp_path, stdin=stdin)

    return command


def test_a_benchmark_is_debugged_and_solved(tmp_path):
    with FakeOpenAI().in_thread() as server:
        tasks = "set.tasks=[{name: sheet-undo}, {name: timesheet}]"
        config = {"debugger": {"model": "debugger", "endpoint": server.url, "api_key": "k"}}
        (tmp_path / "models.json").write_text(json.dumps(config))
        arguments = ("--bundled", "mini_nightmare", "--agent", "debug_agent", "-p", "agent.model=debugger", "-p", tasks)
        options = ("--llm-config", "models.json", "--sandbox", "none", "--output", "json")
        done = dgym("run", *arguments, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = sorted(tmp_path.glob("results/*/*/*/*/result.json"))
    assert [json.loads(path.read_text())["resolved"] for path in results] == [True, True]
    for path in results:
        called = [json.loads(line)["call"] for line in path.with_name("trajectory.jsonl").read_text().splitlines()[2:]]
        assert "pdb" in [call["tool"] for call in called]


def test_a_set_stops_at_its_cost_limit_and_continues_with_a_higher_limit(tmp_path, run):
    looks = Answer(calls=(Call("listdir", {}),))
    tasks = "set.tasks=[{name: sheet-undo}, {name: timesheet}, {name: formula}]"
    limits = "-p", "agent.maxSteps=1", "-p", "set.parallelism=1", "-p", tasks
    sets = "--bundled", "mini_nightmare", "--agent", "debug_agent", *limits
    low = "-p", "set.costLimit=0.001"
    with FakeOpenAI(script=[looks]).in_thread() as server:
        refused = run(server, *sets, *low)
        assert refused.returncode == 2
        assert "costLimit of mini-nightmare is 0.001, but model 'm'" in refused.stderr
        assert not (tmp_path / "results").exists()
        priced = partial(run, server, *sets, prices={"input_price": 10, "output_price": 10})
        done = priced(*low)
        assert done.returncode == 0, done.stderr
        assert "EpisodeSet mini-nightmare: costLimit is 0.001, and 0.0" in done.stderr
        assert "is spent: 2 episodes did not run" in done.stderr
        assert "3 episodes: 0 resolved, 1 unresolved, 0 failed, 2 without a result" in done.stdout
        assert "is spent" in priced(*low).stderr
        assert len(server.received) == 1
        more = priced("-p", "set.costLimit=1")
        assert (more.returncode, len(server.received)) == (0, 3), more.stderr
        assert "is spent" not in more.stderr


def test_a_repository_is_debugged_in_place_of_a_manifest_and_left_alone(repository, run):
    before = {path.name: path.read_text() for path in repository.iterdir()}
    with FakeOpenAI(
        script=[Answer(calls=(Call("view", {"path": "secret.txt"}),)), REPAIR, SUBMIT]
    ).in_thread() as server:
        done = run(server, "repository", "--entrypoint", "python check.py", "--agent", "debug_agent", "-v")
    assert done.returncode == 0, done.stderr
    assert "1 resolved" in done.stdout
    assert "reasoning:\n    The sign is wrong." in done.stderr
    assert {path.name: path.read_text() for path in repository.iterdir()} == before
    assert not any("the secret" in str(received.body) for received in server.received)
    (patch,) = repository.parent.glob("results/*/*/*/*/patch.diff")
    assert "+    return a + b" in patch.read_text()


def test_the_patch_is_applied_after_a_question(repository, run):
    (repository / "calc.py").chmod(0o640)
    with FakeOpenAI(script=[REPAIR, SUBMIT]).in_thread() as server:
        arguments = ("repository", "--entrypoint", "python check.py", "--agent", "rewrite_agent", "--apply")
        for answer in ("n\n", "", "y\n"):
            assert "a - b" in (repository / "calc.py").read_text()
            done = run(server, *arguments, stdin=answer)
            assert done.returncode == 0, done.stderr
            assert f"Apply it to {repository}?" in done.stderr
        assert len(server.received) == 2  # the finished episode does not run again only to repeat the question
    assert "a + b" in (repository / "calc.py").read_text()
    assert (repository / "calc.py").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["repository", "--agent", "debug_agent"], "needs a model: -p agent.model=NAME"),
        (["repository", "--agent", "debug_agent", "-p", "agent.model=mm"], "unknown model 'mm'; did you mean 'm'"),
        (
            ["repository", "--agent", "debug_agent", "-p", "agent.model=m", "-p", "agent.costLimit=2.5"],
            "is 2.5, but model 'm'",
        ),
        (["repository", "--agent", "debug_agent", "-p", "agent.costLimit=0"], 'a number above 0, in quotes ("2.50")'),
        (["repository", "--agent", "debug_agen"], "did you mean 'debug_agent'"),
        (["x.yaml", "--entrypoint", "true"], "--entrypoint is only for repositories"),
        (["repository", "--agent", "debug_agent", "--llm-config", "no.yaml"], "no.yaml"),
    ],
)
def test_problems_are_reported_before_an_episode_runs(repository, tmp_path, arguments, complaint):
    (tmp_path / "llm.yaml").write_text('m: {model: x, endpoint: "http://127.0.0.1:9/v1", api_key: k}\n')
    models = {"LLM_CONFIG_FILE_PATH": str(tmp_path / "llm.yaml")}
    done = dgym("run", *arguments, cwd=tmp_path, environment={**os.environ, **models})
    assert done.returncode == 2
    assert complaint in done.stderr
    assert not (tmp_path / "results").exists()


def spawn(tmp_path, *arguments, **environment):
    return pexpect.spawn(
        str(DGYM),
        ["run", "repository", "--entrypoint", "python check.py", *here(), *arguments],
        cwd=str(tmp_path),
        env={**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": str(tmp_path / "state"), **environment},
        encoding="utf-8",
        timeout=TIMEOUT_SECONDS,
        dimensions=(60, 200),
    )


def test_a_person_can_act_as_the_model(repository, tmp_path):
    child = spawn(tmp_path, "--agent", "rewrite_agent", "-v", "-p", "agent.model=human")
    child.expect("You are a debugging agent")
    child.expect("model>")
    child.sendline("rewrite calc.py 2 <c>    return a + b</c>")
    child.expect("return a \\+ b")
    child.expect("model>")
    child.sendline("submit")
    child.expect("1 resolved")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_debug_stops_after_each_reply_before_its_call_is_made(repository, tmp_path):
    with FakeOpenAI(script=[REPAIR, SUBMIT]).in_thread() as server:
        (tmp_path / "llm.yaml").write_text(json.dumps({"m": {"model": "x", "endpoint": server.url, "api_key": "k"}}))
        child = spawn(tmp_path, "--agent", "debug_agent", "--debug", "-p", "agent.model=m", "--llm-config", "llm.yaml")
        child.expect("The sign is wrong")
        child.expect(r"\(dgym\) ")
        child.sendline("p exchange.calls[0].tool, step.seq, job.agent.name")
        child.expect(r"\('rewrite', 0, 'debug_agent'\)")
        child.sendline("c")
        child.expect("before step 2")
        child.expect(r"\(dgym\) ")
        child.sendline("c")
        child.expect("1 resolved")
        child.expect(pexpect.EOF)
        child.close()
    assert child.exitstatus == 0
