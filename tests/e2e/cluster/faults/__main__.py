"""Faults on a real cluster: ``python -m tests.e2e.cluster.faults PYTEST-ARGUMENTS``.

hack/e2e prepares the cluster and the images. The ends of the matrix's cells go to ``results.json``.
``E2E_FAULTS=sample`` runs six cells and a minute of the soak.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.cluster.faults.kinds import AGENT
from tests.e2e.cluster.faults.node import local_cluster, mount_small, volume_of
from tests.e2e.cluster.release import Release, merged, values_for_tests
from tests.e2e.cluster.services import addresses, deploy
from tests.e2e.cluster.support import new_namespace, until

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
SAMPLE = " or ".join(
    f"({fault} and {moment})"
    for fault, moment in (
        ("sandbox-container-killed", "during-a-step"),
        ("sandbox-OOM", "between-steps"),
        ("pod-deleted", "before-the-first-step"),
        ("pod-evicted", "during-close"),
        ("sidecar-killed", "during-a-step"),
        ("agent-container-restarted", "between-steps"),
    )
)


def main(arguments: list[str]) -> int:
    """The exit status of pytest."""
    with new_namespace("e2e-services") as services:
        os.environ["DGYM_E2E_SERVICES"] = json.dumps(addresses(services))
        sandbox, agent = (os.environ[f"DGYM_E2E_{each}_IMAGE"] for each in ("SANDBOX", "AGENT"))
        deploy(services, sandbox_image=sandbox, agent_image=agent)
        with new_namespace("e2e-faulty") as watched, staged(watched.namespace):
            return run_sample(arguments) if os.environ.get("E2E_FAULTS") == "sample" else run_all(arguments)


@contextmanager
def staged(watched: str) -> Iterator[None]:
    """A release with three agents of a few slots, whose results are on a volume that can be full."""
    with new_namespace("e2e-faults") as kubectl:
        values = merged(values_for_tests(watch=watched, agents=3), {"crds": {"enabled": True}, "agents": {"slots": 4}})
        release = Release("faults", kubectl.namespace, values)
        release.install()
        try:
            shrink_store(release)
            os.environ["DGYM_E2E_FAULT_STAGE"] = json.dumps([release.name, kubectl.namespace, watched])
            yield
        finally:
            release.uninstall()


def shrink_store(release: Release) -> None:
    """Have the agents see a small file system as their volume."""
    cluster = local_cluster()
    if cluster is None:
        return
    agents = ("deployment", "--selector", AGENT)
    release.kubectl("scale", *agents, "--replicas=0")
    until(lambda: not release.kubectl.items("pods", AGENT), what="the agents to go")
    mount_small(cluster, volume_of(release.kubectl))
    release.kubectl("scale", *agents, "--replicas=3")
    release.wait()


def run_all(arguments: list[str]) -> int:
    """The matrix and the soak; what concerns one episode or agent in parallel, what concerns all one by one."""
    with tempfile.TemporaryDirectory() as records:
        os.environ["DGYM_E2E_FAULT_RECORDS"] = records
        parallel = run_pytest("test_matrix.py", "-n", "5", "--dist", "loadgroup", *arguments)
        alone = run_pytest("test_everybody.py", *arguments)
        merge([json.loads(file.read_text()) for file in Path(records).iterdir()])
    return max(parallel, alone, run_pytest("test_soak.py", "-s", *arguments))


def run_sample(arguments: list[str]) -> int:
    """A few cells at a time, and a minute of the soak."""
    for name, value in (("SOAK_EPISODES", "24"), ("SOAK_SECONDS", "60")):
        os.environ.setdefault(name, value)
    cells = run_pytest("test_matrix.py", "-n", "6", "--dist", "load", "-k", SAMPLE, *arguments)
    return max(cells, run_pytest("test_soak.py", "-s", *arguments))


def run_pytest(file: str, *arguments: str) -> int:
    """The exit status; that the arguments choose none of the tests is no failure."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", str(HERE / file), *arguments], check=False
    )
    return 0 if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED else done.returncode


def merge(cells: list[dict[str, object]]) -> None:
    """Write the cells over those of earlier runs, sorted: what was not run now stays as it was."""
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    table = {(cell["fault"], cell["moment"]): cell for cell in (*before, *cells)}
    ordered = [table[key] for key in sorted(table)]
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
