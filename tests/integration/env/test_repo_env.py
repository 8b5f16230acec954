"""An episode as a researcher drives it: reset, step, verdict, patch."""

import pickle
import subprocess
import sys
import time

import pytest

import dgym
from dgym.errors import EpisodeOver, ManifestError, PluginError, SandboxStartFailed, SetupFailed
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
        assert [step.seq for step in env.history()] == list(range(7))

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


def test_reset_starts_afresh_any_number_of_times(task):
    with dgym.RepoEnv(task) as env:
        env.reset()
        env.step(REPAIR)
        env.step("bash touch left-over")
        observation, info = env.reset(seed=7, options={"eval": True})
        assert "left-over" not in observation["text"]
        assert (info["steps"], info["rewrites"], info["score"]) == (0, 0, 1)
        assert env.patch() == ""


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
    with dgym.RepoEnv(task, deadline_seconds=3) as env:
        env.reset()
        observation, _, terminated, truncated, info = env.step("bash sleep 100")
        assert (terminated, truncated, info["reason"]) == (False, True, "DeadlineExceeded")
        assert "deadline" in observation["text"]


def test_a_deadline_that_passes_between_steps_is_told_by_the_next(task):
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


@pytest.mark.parametrize(
    "action",
    ["", "fly away", "view", {"tool": "view"}, {"tool": "view", "arguments": {"path": 3}}, {"arguments": {}}, "{"],
)
def test_a_bad_action_costs_a_step_and_breaks_nothing(task, action):
    with dgym.RepoEnv(task) as env:
        env.reset()
        observation, _, terminated, _, info = env.step(action)
        assert not observation["ok"]
        assert not terminated
        assert info["steps"] == 1
        observation, *_ = env.step("view calc.py")
        assert "return a - b" in observation["text"]


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


def test_a_read_only_file_changed_by_a_shell_does_not_travel(task):
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


def test_setup_runs_on_both_sides_and_is_no_change(new_task):
    task = new_task(setupCommands=["echo 'VALUE = 1' > generated.py"], entrypoint="python -c 'import generated'")
    with dgym.RepoEnv(task) as env:
        env.reset()
        assert env.patch() == ""
        assert env.finish().resolved


def test_bad_arguments_are_told_at_once(task, tmp_path):
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


def test_a_killed_runner_poisons_the_step_and_the_agent_goes_on(task):
    # Under bubblewrap the runner is the first process of its namespace, which nothing inside can kill.
    with dgym.RepoEnv(task, sandbox="none") as env:
        env.reset()
        env.step(REPAIR)
        observation, _, terminated, *_ = env.step("bash kill -9 $PPID")
        assert "sandbox killed" in observation["text"]
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
    """A machine on which neither bubblewrap nor a container engine is installed."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("dgym.sandbox.container.engine._answered", {})
    bubblewrap_problem.cache_clear()
    yield
    bubblewrap_problem.cache_clear()


@pytest.mark.usefixtures("_only_this_interpreter")
@pytest.mark.parametrize("python", [None, sys.executable])
async def test_no_isolation_is_a_decision_and_never_a_fallback(task, python):
    async with dgym.AsyncRepoEnv(task, python=python) as env:
        with pytest.raises(SandboxStartFailed, match=r"bwrap is not installed.*podman or docker.*'none' for code you"):
            await env.reset()
    async with dgym.AsyncRepoEnv(task, sandbox="none", python=python) as env:
        await env.reset()
        assert env._episode._sandboxes._sandbox.kind == "none"
