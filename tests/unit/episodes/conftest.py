import msgspec
import pytest

from dgym.api import AgentSpec, DebugTask, EpisodeSpec
from dgym.episodes import Job, RunOptions

TASK = {"apiVersion": "dgym.dev/v1alpha1", "kind": "DebugTask", "metadata": {"name": "calc"}, "spec": {}}


@pytest.fixture
def make_job(tmp_path):
    def make(episode="one", **fields):
        defaults = {
            "namespace": "local",
            "sample": 0,
            "task": msgspec.convert(TASK, DebugTask),
            "task_digest": "t",
            "agent": AgentSpec(name="replay"),
            "spec": EpisodeSpec(),
            "digest": f"digest-{episode}",
            "manifest": "x.yaml",
            "base": str(tmp_path),
            "options": RunOptions(results=str(tmp_path / "results")),
        }
        return Job(episode=episode, **{**defaults, **fields})

    return make
