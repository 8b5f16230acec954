"""Tests of ``dgym submit`` with the examples and with a plain directory, under both pod templates."""

import json

import pytest

from tests.e2e.cluster.episodes import FILES, REPAIR, SUBMIT, shell
from tests.e2e.cluster.support import ROOT, condition, run

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
MANY_FILES = shell("mkdir -p out; cd out; for n in $(seq 20000); do : > file-$n; done")


WITHOUT_A_MODEL = {
    "arms": ["-p", "set.arms.0.agent.name=solution", "-p", "set.arms.1.agent.name=solution", "-p", "set.samples=1"]
}
"""Options for examples whose agents need a model that the test release does not have."""


@pytest.fixture(params=["restricted", "baseline"])
def submit(request, namespace, baseline_namespace):
    """Submits with ``--wait``. Returns the status of each Episode that was created."""
    kubectl = {"restricted": namespace, "baseline": baseline_namespace}[request.param]

    def submit_and_wait(*arguments):
        flags = ("--wait", "-n", kubectl.namespace, "-p", f"podTemplate={request.param}")
        printed = run("dgym", "submit", *map(str, arguments), *flags, check=False, timeout=400)
        episodes = {each["metadata"]["name"]: each["status"] for each in kubectl.items("episodes")}
        assert episodes, printed
        return episodes

    return submit_and_wait


def check_resolved(episodes):
    found = {name: (status.get("reason"), status.get("outcome")) for name, status in episodes.items()}
    assert {condition(status, "Resolved").get("status") for status in episodes.values()} == {"True"}, found


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example(submit, example):
    check_resolved(submit(example, *WITHOUT_A_MODEL.get(example.stem, ())))


def test_a_directory_without_named_tests(submit, tmp_path):
    check_resolved(submit(repository(tmp_path), *replaying(REPAIR, SUBMIT)))


@pytest.mark.parametrize("submit", ["restricted"], indirect=True)
def test_twenty_thousand_new_files(submit, tmp_path):
    check_resolved(submit(repository(tmp_path), *replaying(REPAIR, MANY_FILES, SUBMIT)))


def repository(directory):
    for path, text in FILES.items():
        (directory / path).write_text(text)
    return directory


def replaying(*calls):
    trajectory = json.dumps("\n".join(json.dumps(call) for call in calls))
    return "--agent", "replay", "-p", f"agent.parameters.trajectory={trajectory}"
