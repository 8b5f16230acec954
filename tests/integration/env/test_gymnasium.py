"""Tests of dgym/Repo-v0 through the interface of Gymnasium."""

import os
import subprocess
import sys

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import dgym.gymnasium
from dgym.api import STANDARD_TOOLS
from dgym.benchmarks import load_bundled
from dgym.errors import EpisodeOver, ManifestError, PluginError
from dgym.gymnasium import ENVIRONMENT_ID, ToolCalls, UnicodeText
from dgym.tools import Tool

# An async vector environment forks. Since Python 3.12, a fork of a process with threads issues a warning.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.timeout(500),
]

RANDOM_STEPS = int(os.environ.get("DGYM_RANDOM_STEPS", "50"))
"""Number of steps of the random agent. A thousand steps take minutes."""

REPAIR = {"tool": "rewrite", "arguments": {"path": "calc.py", "start": 2, "end": 2, "new_code": "    return a + b"}}


@pytest.fixture
def make(task):
    """``gymnasium.make`` for the small task. The environments are closed at the end."""
    made = []

    def make_one(**options):
        made.append(gymnasium.make(ENVIRONMENT_ID, **{"task": task, "sandbox": "none"} | options))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


@pytest.fixture
def make_vec(task):
    made = []

    def make_one(**options):
        made.append(gymnasium.make_vec(ENVIRONMENT_ID, **{"task": task, "sandbox": "none"} | options))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


def test_gymnasiums_own_check_passes_without_a_warning(make):
    check_env(make().unwrapped)


def test_the_check_passes_for_texts_as_actions(make):
    check_env(make(actions="texts", tools=["view", "submit"]).unwrapped)


def test_an_episode_through_gymnasium(make):
    env = make(render_mode="ansi")
    observation, info = env.reset(seed=1, options={"eval": True})
    assert observation in env.observation_space
    assert env.render() == observation["text"]
    assert (info["score"], info["max_score"]) == (1, 3)
    assert "reason" not in info
    for action in ("pdb b calc.py:2", "pdb c", "bash printf 'Grüße, 世界 🐞'", "eval", "fly away", REPAIR):
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation in env.observation_space
        assert env.render() == observation["text"]
        assert (reward, terminated, truncated) == (0.0, False, False)
    observation, reward, terminated, truncated, info = env.step({"tool": "submit"})
    assert observation in env.observation_space
    assert (reward, terminated, truncated, info["reason"]) == (1.0, True, False, "Resolved")
    assert observation["end_reason"] == "Resolved"
    assert env.unwrapped.result.resolved
    assert "+    return a + b" in env.unwrapped.repo.patch()
    with pytest.raises(EpisodeOver):
        env.step("eval")


def test_observations_are_those_of_a_repo_env_and_their_parts_hold_in_the_space(make, task):
    env = make(tools=["pdb", "bash"])
    env.reset()
    with dgym.RepoEnv(task, tools=["pdb", "bash"], sandbox="none") as plain:
        plain.reset()
        for action in ("pdb b calc.py:2", "pdb c", "bash exit 3", "bash printf '\\0'"):
            assert env.step(action)[0] == plain.step(action)[0]
    observation = env.step("pdb c")[0]
    for wrong in (
        {"frame": {"file": "calc.py"}},
        {"ok": 1},
        {"exit_status": "0"},
        {"breakpoints": [{}]},
        {"text": None},
    ):
        assert observation | wrong not in env.observation_space
    assert all(env.observation_space.sample() in env.observation_space for _ in range(50))


def test_a_diff_is_bounded_as_the_text_is(make):
    env = make(tools=["rewrite"])
    env.reset()
    observation, *_ = env.step({"tool": "rewrite", "arguments": {"path": "new.py", "new_code": "x = 1\n" * 50_000}})
    assert observation["ok"]
    assert len(observation["diff"].encode()) <= 64 * 1024
    assert "bytes cut" in observation["diff"]
    assert observation in env.observation_space


def test_callers_can_change_returned_values_without_side_effects(make):
    env = make(tools=["view"])
    _, info = env.reset()
    info["tools"][0]["parameters"]["properties"].clear()
    info["instructions"].clear()
    _, info = env.reset()
    assert info["tools"][0]["parameters"]["properties"]
    assert "view" in info["instructions"]


@pytest.mark.parametrize(("mode", "settings"), [("sync", {}), ("async", {"shared_memory": False})])
def test_vector_environments(make_vec, mode, settings):
    envs = make_vec(num_envs=2, vectorization_mode=mode, vector_kwargs=settings, max_steps=2, render_mode="ansi")
    envs.action_space.seed(5)
    assert envs.action_space.sample() in envs.action_space
    observations, infos = envs.reset(seed=3)
    assert observations in envs.observation_space
    assert observations["frame"] == (None, None)
    assert list(infos["steps"]) == [0, 0]
    observations, *_ = envs.step((REPAIR, "view calc.py"))
    assert observations in envs.observation_space
    assert observations["tool"] == ("rewrite", "view")
    assert "return a - b" in envs.render()[1]
    observations, rewards, terminated, truncated, infos = envs.step(("eval", "eval"))
    assert list(rewards) == pytest.approx([1.0, 1 / 3])
    assert (list(terminated), list(truncated)) == ([True, False], [False, True])
    assert list(infos["reason"]) == ["Resolved", "StepLimitReached"]
    observations, _, terminated, truncated, infos = envs.step(("eval", "eval"))
    assert observations["tool"] == ("reset", "reset")
    assert not terminated.any()
    assert not truncated.any()
    assert "reason" not in infos


def test_vector_infos_mark_environments_without_a_score(make_vec):
    envs = make_vec(num_envs=2, tools=["eval", "view"])
    envs.reset()
    *_, infos = envs.step(("eval", "view calc.py"))
    assert list(infos["_score"]) == [True, False]
    assert infos["score"][0] == 1


@pytest.mark.thorough
def test_random_actions_do_not_raise():
    tasks = load_bundled("mini_nightmare")
    tools = [name for name in STANDARD_TOOLS if name != "submit"]  # submit would end episodes after a few steps
    steps = episodes = 0
    while steps < RANDOM_STEPS:
        env = gymnasium.make(ENVIRONMENT_ID, task=tasks[episodes % len(tasks)], tools=tools, max_steps=25)
        env.action_space.seed(episodes)
        observation, _ = env.reset(seed=episodes)
        assert observation in env.observation_space
        over = False
        while not over and steps < RANDOM_STEPS:
            action = env.action_space.sample()
            observation, reward, terminated, truncated, _ = env.step(action)
            steps += 1
            assert observation in env.observation_space, action
            assert 0.0 <= reward <= 1.0
            over = terminated or truncated
        env.close()
        episodes += 1


def test_the_action_space_contains_calls_of_the_tools_and_names_of_files(make):
    env = make(tools=["view", {"name": "pdb", "options": {"autoList": False}}])
    assert isinstance(env.action_space, ToolCalls)
    assert "calc.py" in env.action_space.words
    assert {"tool": "pdb", "arguments": {"command": "n"}} in env.action_space
    assert {"tool": "rewrite", "arguments": {"path": "a", "new_code": ""}} not in env.action_space
    assert isinstance(make(actions="texts").action_space, UnicodeText)


def test_tools_may_be_objects(make):
    class Parrot(Tool):
        """Say it again."""

        async def use(self, context, text: str) -> str:
            return text

    env = make(tools=[Parrot()])
    env.reset()
    assert env.step({"tool": "parrot", "arguments": {"text": "𝔤𝔶𝔪"}})[0]["text"] == "𝔤𝔶𝔪"


def test_invalid_arguments_raise_in_the_constructor(make, tmp_path):
    with pytest.raises(ValueError, match="actions"):
        make(actions="numbers")
    with pytest.raises(PluginError, match="flyer"):
        make(tools=["flyer"])
    with pytest.raises(ManifestError):
        make(task=tmp_path / "missing.yaml")


def test_make_imports_the_module_in_the_id_and_dgym_does_not_import_gymnasium(tmp_path):
    code = (
        "import sys, dgym, dgym.env, dgym.cli; assert not {'gymnasium', 'numpy'} & {*sys.modules}\n"
        "import gymnasium\n"
        "assert 'dgym/Repo-v0' not in gymnasium.registry\n"
        "print(gymnasium.make('dgym.gymnasium:dgym/Repo-v0', task=sys.argv[1]).spec.id)\n"
    )
    manifest = tmp_path / "task.yaml"
    manifest.write_text("apiVersion: dgym.dev/v1alpha1\nkind: DebugTask\nmetadata: {name: empty}\nspec: {}\n")
    done = subprocess.run([sys.executable, "-c", code, str(manifest)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "dgym/Repo-v0"
