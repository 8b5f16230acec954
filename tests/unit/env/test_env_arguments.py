import math

import pytest

import dgym
from dgym.api import DebugTaskSpec, ObjectMeta
from dgym.env import AsyncRepoEnv, RepoEnv
from dgym.errors import ArgumentError


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
def test_a_wrong_argument_is_refused_with_its_value_and_what_is_valid(make, task, argument, value, valid):
    with pytest.raises(ArgumentError) as refused:
        make(task, **{argument: value})
    assert str(refused.value).startswith(f"{argument} is {value!r}; it must be {valid}")
    assert isinstance(refused.value, ValueError)
    assert isinstance(refused.value, dgym.DgymError)


def test_no_limit_is_an_argument(task):
    with RepoEnv(task, max_rewrites=None, deadline_seconds=None, python=None) as env:
        assert env.result is None
