import math

import gymnasium
import pytest

import dgym
from dgym.api import DebugTaskSpec, ObjectMeta
from dgym.env import AsyncRepoEnv, RepoEnv, open_task
from dgym.errors import ArgumentError, ManifestError


@pytest.fixture
def task():
    return dgym.DebugTask(metadata=ObjectMeta(name="calc"), spec=DebugTaskSpec())


@pytest.mark.parametrize("make", [RepoEnv, AsyncRepoEnv])
@pytest.mark.parametrize(
    ("argument", "value", "valid"),
    [
        ("sandbox", "bubble", '"auto", "bubblewrap", "container" or "none"'),
        ("sandbox", ["none"], '"auto", "bubblewrap", "container" or "none"'),
        ("engine", "containerd", '"auto", "docker" or "podman"'),
        ("render_mode", "human", 'None or "ansi"'),
        ("max_steps", -3, "a whole number from 1 on"),
        ("max_steps", 0, "a whole number from 1 on"),
        ("max_steps", "50", "a whole number from 1 on"),
        ("max_steps", True, "a whole number from 1 on"),
        ("max_rewrites", -1, "a whole number from 0 on, or None for no limit"),
        ("deadline_seconds", -1, "a number of seconds above 0, or None for no limit"),
        ("deadline_seconds", math.nan, "a number of seconds above 0, or None for no limit"),
        ("deadline_seconds", "1h", "a number of seconds above 0, or None for no limit"),
        ("tools", "view", "a sequence of names"),
        ("python", "", "the path of an interpreter or a virtual environment, or None"),
        ("progress", "yes", "a function of one text, or None"),
    ],
)
def test_an_invalid_argument_is_refused_with_its_value_and_the_valid_values(make, task, argument, value, valid):
    with pytest.raises(ArgumentError) as refused:
        make(task, **{argument: value})
    assert str(refused.value).startswith(f"{argument} is {value!r}; it must be {valid}")
    assert isinstance(refused.value, ValueError)
    assert isinstance(refused.value, dgym.DgymError)


def test_no_limit_is_an_argument(task):
    with RepoEnv(task, max_rewrites=None, deadline_seconds=None, python=None) as env:
        assert env.result is None


EPISODE = """
apiVersion: dgym.dev/v1alpha1
kind: Episode
metadata: {name: mine}
spec:
  %s
"""
TASK = """---
apiVersion: dgym.dev/v1alpha1
kind: DebugTask
metadata: {name: %s}
spec: {source: {files: []}}
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (EPISODE % "task: {source: {files: []}}", "mine"),
        (EPISODE % "taskRef: {name: other}" + TASK % "other", "other"),
        (EPISODE % "taskRef: {name: other}" + TASK % "first" + TASK % "other", "other"),
        (EPISODE % "taskRef: {name: timesheet}", "timesheet"),
        (TASK % "other", "other"),
    ],
)
def test_a_manifest_of_an_episode_gives_its_task(tmp_path, text, name):
    path = tmp_path / "episode.yaml"
    path.write_text(text)
    assert open_task(path).metadata.name == name
    assert open_task(str(path)).metadata.name == name


def test_a_bundled_task_is_found_by_its_name():
    assert open_task("timesheet").metadata.name == "timesheet"
    RepoEnv("timesheet").close()
    gymnasium.make("dgym.gymnasium:dgym/Repo-v0", task="timesheet").close()


@pytest.mark.parametrize("wrong", ["timeshet", "absent.yaml", "absent/timesheet"])
def test_a_task_that_does_not_exist_is_refused(wrong):
    with pytest.raises(ManifestError, match=wrong):
        open_task(wrong)


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (
            lambda env: env.run("true"),
            r"run\(\) works .* not for one in a pod: give the agent the tool bash, or use k",
        ),
        (lambda env: env.restore("x.py"), r"restore\(\) works .*: the agent can restore files by its tools rewrite"),
        (lambda env: env.add_tool("view"), r"add_tool\(\) works .*: its tools are those of the Episode's spec.tools"),
        (lambda env: env.remove_tool("view"), r"remove_tool\(\) works .*: its tools are those of the Episode's"),
    ],
)
def test_methods_for_local_episodes_raise_with_a_remedy_for_pods(call, remedy):
    for place in (("http://127.0.0.1:1", "token"), ("debug/fix",)):
        with RepoEnv.connect(*place) as env, pytest.raises(ArgumentError, match=remedy):
            call(env)
