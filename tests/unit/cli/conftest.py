import msgspec
import pytest

from dgym.api import AgentSpec, DebugTask, EpisodeSpec
from dgym.episodes import Job
from dgym.results import StoredResult


@pytest.fixture
def job():
    def make(episode):
        task = {"apiVersion": "dgym.dev/v1alpha1", "kind": "DebugTask", "metadata": {"name": "calc"}, "spec": {}}
        return Job(
            namespace="local",
            episode=episode,
            sample=0,
            task=msgspec.convert(task, DebugTask),
            task_digest="t",
            agent=AgentSpec(name="replay"),
            spec=EpisodeSpec(),
            digest="d",
            manifest="x.yaml",
            base=".",
        )

    return make


@pytest.fixture
def result():
    def make(reason, score=0, **fields):
        return StoredResult(resolved=score == 2, reason=reason, score=score, max_score=2, **fields)

    return make
