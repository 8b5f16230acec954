"""Tests of RepoEnv in user code: reset, steps, score, patch, tools and limits."""

import pickle
import subprocess
import sys
import time

import pytest

import dgym
from dgym.errors import (
    ArgumentError,
    EpisodeOver,
    ManifestError,
    PathError,
    PluginError,
    SandboxLost,
    SandboxStartFailed,
    SetupFailed,
)
from dgym.sandbox.local import bubblewrap_problem
from dgym.wire import EndReason

REPAIR = {"tool": "rewrite", "arguments": {"path": "calc.py", "start": 2, "end": 2, "new_code": "    return a + b"}}


def test_an_episode_from_reset_to_resolved(task, kind, tmp_path):
    with dgym.RepoEnv(task, sandbox=kind) as env:
        observation, info = env.reset()
        assert "calc is wrong" in observation["text"]
        assert "calc.py" in observation["text"]
        assert (info["steps"], info["resolved"], info["reason"]) == (0, False, None)
        assert {tool["name"] for tool in info["tools"]} >= {"pdb", "view", "rewrite", "eval", "listdir"}
        assert "pdb" in info["instructions"]

        observation, reward, terminated, truncated, info = env.step("eval")
        assert observation["score"] == {"score": 1, "max_score": 3}
        assert (info["score"], info["max_score"]) == (1, 3)
        assert observation["exit_status"] == 1

        observation, *_ = env.step("pdb b calc.py:2")
        assert [point["line"] for point in observation["breakpoints"]] == [2]
        observation, *_ = env.step("pdb c")
        assert observation["frame"] == {"file": "calc.py", "line": 2, "function": "add"}
        observation, *_ = env.step("pdb p a, b, a - b")
        assert "(2, 3, -1)" in observation["text"]

        observation, reward, terminated, truncated, info = env.step(REPAIR)
        assert observation["diff"].count("\n+") >= 1
        assert info["rewrites"] == 1
        assert (reward, terminated, truncated) == (0.0, False, False)

        observation, reward, terminated, truncated, info = env.step("submit")
        assert (reward, terminated, truncated) == (1.0, True, False)
        assert (info["resolved"], info["reason"], info["score"], info["max_score"]) == (True, "Resolved", 3, 3)
        patch = env.patch()
        assert [step.seq for step in env.trajectory()] == list(range(7))

        with pytest.raises(EpisodeOver):
            env.step("eval")

    repository = tmp_path / "repository"
    repository.mkdir()
    for file in task.spec.source.files:
        (repository / file.path).write_text(file.content)
    subprocess.run(["git", "apply", "-"], cwd=repository, input=patch.encode(), check=True)
    assert "return a + b" in (repository / "calc.py").read_text()


async def test_the_same_without_blocking(task):
    async with dgym.AsyncRepoEnv(task) as env:
        await env.reset()
        await env.step(REPAIR)
        *_, info = await env.step("submit done")
        assert info["resolved"]


def test_every_reset_starts_a_new_episode(task):
    with dgym.RepoEnv(task) as env:
        env.reset()
        env.step(REPAIR)
        env.step("bash touch left-over")
        observation, info = env.reset(seed=7, options={"eval": True})
        assert "left-over" not in observation["text"]
        assert (info["steps"], info["rewrites"], info["score"]) == (0, 0, 1)
        assert env.patch() == ""


class Shout(dgym.Tool):
    """Say something loudly."""

    setup_commands = ("echo ready > shout.txt",)

    async def use(self, context, text: str) -> str:
        return f"{text.upper()} {await context.read_text('shout.txt')}"


def test_commands_of_run_are_not_recorded(task, kind):
    with dgym.RepoEnv(task, sandbox=kind) as env:
        with pytest.raises(EpisodeOver, match="call reset"):
            env.run("true")
        env.reset()
        env.step("pdb b calc.py:6")
        done = env.run("sed -i 's/a - b/a + b/; 1i # moved' calc.py; echo $PWD >&2; exit 3")
        assert (done["exit_status"], done["timed_out"], done["truncated_bytes"]) == (3, False, 0)
        assert done["text"].strip() == env.run("pwd")["text"].strip() != ""
        assert env.run("sleep 60", timeout_seconds=0.2)["timed_out"]
        assert [step.seq for step in env.trajectory()] == [0, 1]
        assert "+    return a + b" in env.patch()
        observation, *_, info = env.step("pdb b")
        assert [point["line"] for point in observation["breakpoints"]] == [7]
        assert info["steps"] == 2
        *_, info = env.step("submit")
        assert (info["resolved"], info["steps"]) == (True, 3)
        with pytest.raises(EpisodeOver, match="the episode is over"):
            env.run("true")
        for wrong in ("", " ", None, 3):
            with pytest.raises(ArgumentError, match="it must be a shell line"):
                env.run(wrong)


def test_a_sandbox_that_dies_during_run_is_replaced(task):
    with dgym.RepoEnv(task, sandbox="none") as env:
        env.reset()
        env.step(REPAIR)
        with pytest.raises(SandboxLost, match=r"a new one has the steps, but no changes by run\(\)"):
            env.run("touch gone; kill -9 $PPID")
        patch = env.patch()
        assert "+    return a + b" in patch
        assert "gone" not in patch
        *_, info = env.step("submit")
        assert (info["resolved"], info["steps"]) == (True, 2)


def test_the_patch_between_steps_is_the_same_as_at_the_end(new_task):
    files = {"calc.py": "x = 1\n", "lib/a.py": "a = 1\n", "lib/b.py": "b = 1\n", ".gitignore": "*.log\n", "t.py": "1\n"}
    task = new_task(files, readOnlyPatterns=["t.py"], solution=None, entrypoint="true")
    with dgym.RepoEnv(task, sandbox="none") as env:
        env.reset()
        assert env.patch() == ""
        env.step("bash touch -r calc.py time; printf 'x = 2\\n' > calc.py; touch -r time calc.py; rm time")
        assert "+x = 2" in env.patch()
        env.step("bash rm -r lib; ln -s calc.py lib; ln -s /etc/passwd out; echo 2 > t.py; echo 3 > a.log")
        env.step("bash mkdir new; echo 1 > new/one; chmod +x calc.py; ln -s nowhere new/two; ln -s ../lib new/three")
        between = env.patch()
        assert between.count("diff --git") == 7
        *_, info = env.step("submit")
        assert info["reason"]
        assert env.patch() == between


def test_files_are_restored(new_task):
    script = {"run.sh": "#!/bin/sh\n", "calc.py": "x = 1\n", "lib/a.py": "a = 1\n", "lib/b.py": "b = 1\n"}
    task = new_task(files=script, setupCommands=["chmod +x run.sh; echo 'x = 2' > calc.py; ln -s calc.py link"])
    with dgym.RepoEnv(task, tools=["bash", "view", "submit"]) as env:
        env.reset()
        env.step("bash chmod -x run.sh; echo broken > calc.py; rm link; mkdir link new; touch link/x new/y")
        env.step("bash rm -r lib; echo > lib")
        assert env.restore("calc.py") == ["calc.py"]
        assert env.run("cat calc.py")["text"].strip() == "x = 2"
        assert env.restore(["lib/a.py", "new"]) == ["lib", "lib/a.py", "new/y"]
        assert env.run("cat lib/*")["text"].strip() == "a = 1"
        assert env.restore() == ["lib/b.py", "link", "link/x", "run.sh"]
        assert env.patch() == ""
        assert env.run("test -x run.sh && readlink link")["text"].strip() == "calc.py"
        assert env.restore() == []
        assert len(env.trajectory()) == 3
        for path, expected in (("nowhere", "'nowhere' is neither"), ("../calc.py", "outside"), ("", "empty")):
            with pytest.raises(PathError, match=expected):
                env.restore(path)
        with pytest.raises(ArgumentError, match="a path or a sequence of paths"):
            env.restore(7)


def test_tools_can_be_added_and_removed(task, kind):
    with dgym.RepoEnv(task, tools=["view", "bash"], sandbox=kind) as env:
        env.add_tool("eval")
        with pytest.raises(PluginError, match="Two tools are named `eval`"):
            env.add_tool("eval")
        _, info = env.reset()
        assert [tool["name"] for tool in info["tools"]] == ["view", "bash", "eval"]
        env.add_tool(Shout())
        observation, *_, info = env.step("shout hear")
        assert observation["text"] == "HEAR ready\n"
        assert [tool["name"] for tool in info["tools"]] == ["view", "bash", "eval", "shout"]
        assert "shout.txt" in env.patch()
        assert isinstance(env.remove_tool("shout"), Shout)
        observation, *_, info = env.step("shout again")
        assert "Unknown tool `shout`" in observation["text"]
        assert [tool["name"] for tool in info["tools"]] == ["view", "bash", "eval"]
        with pytest.raises(PluginError, match=r"no tool 'shout' to remove\. Tools: view, bash, eval"):
            env.remove_tool("shout")
        _, info = env.reset()
        assert [tool["name"] for tool in info["tools"]] == ["view", "bash", "eval"]
        env.add_tool({"name": "submit", "options": {"evaluate": False}})
        copy = pickle.loads(pickle.dumps(env))
    with copy:
        copy.reset()
        *_, info = copy.step("submit")
        assert info["reason"] == "Submitted"


def test_a_sandbox_that_replaces_another_has_what_tools_set_up(task):
    with dgym.RepoEnv(task, tools=["bash", "eval", "submit"], sandbox="none") as env:
        env.reset()
        env.add_tool(Shout())
        env.step("shout one")
        env.remove_tool("shout")
        observation, *_ = env.step("bash kill -9 $PPID")
        assert "The sandbox was killed" in observation["text"]
        observation, *_ = env.step("bash cat shout.txt")
        assert "ready" in observation["text"]


def test_setup_commands_of_a_tool_that_fail_are_named(task):
    failing = Shout()
    failing.setup_commands = ["echo no such package >&2; exit 7"]
    wrong = pytest.raises(SetupFailed, match=r"of tool shout ended by exit with status 7:\nno such package")
    with dgym.RepoEnv(task, tools=["bash", failing], sandbox="none") as env, wrong:
        env.reset()
    failing.setup_commands = "echo one text"
    with pytest.raises(PluginError, match="setup_commands is 'echo one text'; it must be a list of shell lines"):
        dgym.RepoEnv(task, tools=[failing])


async def test_the_experimenter_does_the_same_without_blocking(task):
    async with dgym.AsyncRepoEnv(task, sandbox="none") as env:
        await env.reset()
        await env.add_tool(Shout())
        assert (await env.run("cat shout.txt"))["text"].strip() == "ready"
        assert await env.restore() == ["shout.txt"]
        env.remove_tool("shout")


def test_the_step_limit_truncates_and_scores(task):
    with dgym.RepoEnv(task, max_steps=2) as env:
        env.reset()
        env.step("listdir")
        _, reward, terminated, truncated, info = env.step("listdir")
        assert (terminated, truncated, info["reason"]) == (False, True, "StepLimitReached")
        assert reward == pytest.approx(1 / 3)


def test_resolved_by_the_last_allowed_step_is_resolved(task):
    with dgym.RepoEnv(task, max_steps=1) as env:
        env.reset()
        _, reward, terminated, truncated, info = env.step(REPAIR)
        assert (reward, terminated, truncated, info["reason"]) == (1.0, True, False, "Resolved")


def test_the_rewrite_limit_ends_the_episode(task):
    with dgym.RepoEnv(task, max_rewrites=1) as env:
        env.reset()
        _, _, terminated, truncated, info = env.step("rewrite calc.py 2 <c>    return a * b</c>")
        assert (terminated, truncated, info["reason"]) == (False, True, "RewriteLimitReached")


def test_the_deadline_interrupts_a_step_and_scores(task):
    with dgym.RepoEnv(task, deadline_seconds=1.5) as env:
        env.reset()
        observation, _, terminated, truncated, info = env.step("bash sleep 100")
        assert (terminated, truncated, info["reason"]) == (False, True, "DeadlineExceeded")
        assert "deadline" in observation["text"]


def test_the_next_step_reports_a_deadline_that_passed_between_steps(task):
    with dgym.RepoEnv(task, deadline_seconds=1) as env:
        env.reset()
        while env.result is None:
            time.sleep(0.01)
        observation, _, _, truncated, info = env.step("listdir")
        assert truncated
        assert "DeadlineExceeded" in observation["text"]
        assert info["max_score"] == 3
        with pytest.raises(EpisodeOver):
            env.step("listdir")


BAD_ACTIONS = [
    *("", "fly away", "view", {"tool": "view"}, {"tool": "view", "arguments": {"path": 3}}, {"arguments": {}}, "{"),
]


def test_an_invalid_action_counts_as_a_step_and_the_episode_continues(task):
    with dgym.RepoEnv(task) as env:
        env.reset()
        for number, action in enumerate(BAD_ACTIONS):
            observation, _, terminated, _, info = env.step(action)
            assert (observation["ok"], terminated, info["steps"]) == (False, False, 2 * number + 1), action
            observation, *_ = env.step("view calc.py")
            assert "return a - b" in observation["text"], action


def test_stop_when_eval_passes(new_task):
    with dgym.RepoEnv(new_task(scoring={"stopWhenEvalPasses": True})) as env:
        env.reset()
        env.step(REPAIR)
        *_, terminated, _, info = env.step("eval")
        assert terminated
        assert info["resolved"]


def test_named_tests_are_what_counts(new_task):
    scoring = {"failToPass": ["test_calc.py::test_add"], "passToPass": ["test_calc.py::test_zero"]}
    with dgym.RepoEnv(new_task(scoring=scoring)) as env:
        env.reset()
        observation, *_ = env.step("eval")
        assert observation["score"] == {"score": 1, "max_score": 2}
        env.step(REPAIR)
        *_, info = env.step("submit")
        assert (info["score"], info["max_score"]) == (2, 2)


def test_a_read_only_file_changed_by_a_shell_is_not_in_the_patch(task):
    with dgym.RepoEnv(task) as env:
        env.reset()
        env.step("bash chmod u+w test_calc.py; printf 'def test_add(): pass\\n' > test_calc.py")
        *_, info = env.step("submit")
        assert not info["resolved"]
        assert env.patch() == ""
        assert any("test_calc.py" in note for note in env.result.notes)


def test_setup_that_fails_is_infrastructure(new_task):
    with dgym.RepoEnv(new_task(setupCommands=["echo before; echo no such thing >&2; exit 3"])) as env:
        with pytest.raises(SetupFailed, match="status 3") as caught:
            env.reset()
        assert "no such thing" in str(caught.value)


def test_setup_runs_in_sandbox_and_verifier_and_is_not_in_the_patch(new_task):
    task = new_task(setupCommands=["echo 'VALUE = 1' > generated.py"], entrypoint="python -c 'import generated'")
    with dgym.RepoEnv(task) as env:
        env.reset()
        assert env.patch() == ""
        assert env.finish().resolved


def test_invalid_arguments_raise_immediately(task, tmp_path):
    with pytest.raises(PluginError, match="flyer"):
        dgym.RepoEnv(task, tools=["flyer"])
    with pytest.raises(ManifestError):
        dgym.RepoEnv(tmp_path / "missing.yaml")
    with dgym.RepoEnv(task) as env:
        with pytest.raises(EpisodeOver, match="reset"):
            env.step("eval")
        with pytest.raises(ValueError, match="unknown options"):
            env.reset(options={"evaluate": True})


def test_closing_twice_and_pickling(task):
    env = dgym.RepoEnv(task, max_steps=3, render_mode="ansi")
    copy = pickle.loads(pickle.dumps(env))
    env.close()
    env.close()
    with copy:
        observation, _ = copy.reset()
        assert copy.render() == observation["text"]


def test_a_killed_runner_poisons_the_step_and_the_episode_continues(task):
    # Under bubblewrap the runner is the first process of its namespace, and processes inside cannot kill it.
    with dgym.RepoEnv(task, sandbox="none") as env:
        env.reset()
        env.step(REPAIR)
        observation, _, terminated, *_ = env.step("bash kill -9 $PPID")
        assert "The sandbox was killed" in observation["text"]
        assert not terminated
        observation, *_ = env.step("view calc.py")
        assert "return a + b" in observation["text"]
        observation, _, terminated, _, info = env.step("bash kill -9 $PPID")
        assert terminated
        assert env.result.reason in (EndReason.RESOLVED, EndReason.SANDBOX_KILLED)
        assert info["resolved"]


async def test_the_solution_agent_path(task):
    async with dgym.AsyncRepoEnv(task) as env:
        await env.reset()
        assert (await env.apply_solution()).ok
        assert (await env.finish()).resolved


@pytest.fixture
def _only_this_interpreter(tmp_path, monkeypatch):
    """Simulate a machine on which neither bubblewrap nor a container engine is installed."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("dgym.sandbox.container._engine._answered", {})
    bubblewrap_problem.cache_clear()
    yield
    bubblewrap_problem.cache_clear()


@pytest.mark.usefixtures("_only_this_interpreter")
@pytest.mark.parametrize("python", [None, sys.executable])
async def test_sandbox_none_is_used_only_if_requested(task, python):
    async with dgym.AsyncRepoEnv(task, python=python) as env:
        with pytest.raises(SandboxStartFailed, match=r"bwrap is not installed.*podman or docker.*'none' for code you"):
            await env.reset()
    async with dgym.AsyncRepoEnv(task, sandbox="none", python=python) as env:
        await env.reset()
        assert env._episode._sandboxes._sandbox.kind == "none"
