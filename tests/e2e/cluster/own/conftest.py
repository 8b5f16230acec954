"""A release for each module that requests one. It watches one namespace, so that modules do not affect each other."""

import pytest

from tests.e2e.cluster.episodes import STEPS
from tests.e2e.cluster.release import installed
from tests.e2e.cluster.support import new_namespace, unique


@pytest.fixture(scope="module")
def watched():
    """The only namespace that the module's release watches."""
    with new_namespace("e2e-watched") as kubectl:
        yield kubectl


@pytest.fixture(scope="module")
def release(watched):
    """A release with two agent pods, so that the second can take over from the first."""
    with installed(unique("own"), watch=watched.namespace, agents=2) as release:
        yield release


@pytest.fixture
def check_each_step_once(release, watched, tmp_path):
    """Checks the file that the steps of an episode wrote, as ``cat`` showed it, and the trajectory. Returns status."""

    def check(name, attempt=1):
        status = watched.finished(name)
        assert status["reason"] == "Resolved", watched.explain(name)
        assert status["attempt"] == attempt
        lines = release.trajectory(watched, name, tmp_path, attempt=attempt)
        assert [line["seq"] for line in lines] == list(range(STEPS + 4))
        (shown,) = [
            line["observation"]["text"]
            for line in lines
            if line["call"] and line["call"]["arguments"].get("command") == "cat counter.txt"
        ]
        assert [int(word) for word in shown.split() if word.isdecimal()] == list(range(1, STEPS + 1)), shown
        assert status["outcome"]["steps"] == STEPS + 3
        return status

    return check
