"""Runs of the fault tests: a release, a namespace, and pytest for each part. The services and images must exist."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.e2e.cluster.faults import page
from tests.e2e.cluster.faults.kinds import AGENT, AGENTS, scale_agents
from tests.e2e.cluster.faults.node import local_cluster, small_file_system, volume_of
from tests.e2e.cluster.release import Release, merged, values_for_tests
from tests.e2e.cluster.support import new_namespace, until

HERE = Path(__file__).parent
SAMPLE = ("test_sample.py", "test_soak.py")
# Slots of an agent pod, so that it can serve an episode at each moment.
SLOTS = 5


def run_staged(arguments: list[str], *, sample: bool) -> int:
    """Run all tests, or six cells and a minute of the soak. Returns the exit status of pytest."""
    if local_cluster() is None:
        print("no faults: they need a cluster of this machine's own processes (E2E_CLUSTER=local)", flush=True)
        return 0
    if sample and not any(chooses(file, arguments) for file in SAMPLE):
        return 0
    with new_namespace("e2e-faulty") as watched, staged(watched.namespace, sample=sample):
        return run_sample(arguments) if sample else run_all(arguments)


@contextmanager
def staged(watched: str, *, sample: bool) -> Iterator[None]:
    """A release whose agent pods have few slots. Unless ``sample``, their results are on a separate file system."""
    with new_namespace("e2e-faults") as kubectl, ExitStack() as mounts:
        values = {"crds": {"enabled": True}, "agents": {"slots": SLOTS}}
        release = Release("faults", kubectl.namespace, merged(values_for_tests(watch=watched, agents=AGENTS), values))
        release.install()
        try:
            if not sample:
                mounts.enter_context(small_store(release))
            os.environ["DGYM_E2E_FAULT_STAGE"] = json.dumps([release.name, kubectl.namespace, watched])
            yield
        finally:
            release.uninstall()


@contextmanager
def small_store(release: Release) -> Iterator[None]:
    """Replace the volume of the agent pods by a small file system."""
    cluster = local_cluster()
    assert cluster is not None
    release.kubectl("scale", "deployment", "--selector", AGENT, "--replicas=0")
    until(lambda: not release.kubectl.items("pods", AGENT), what="the agents to go")
    with small_file_system(cluster, volume_of(release.kubectl)):
        scale_agents(release, AGENTS)
        yield


def run_all(arguments: list[str]) -> int:
    """Run the matrix and the soak. Faults of a single episode run in parallel, other faults one after the other."""
    with tempfile.TemporaryDirectory() as records:
        os.environ["DGYM_E2E_FAULT_RECORDS"] = records
        parallel = run_pytest("test_matrix.py", 6, arguments)
        alone = run_pytest("test_everybody.py", 0, arguments)
        page.write([json.loads(file.read_text()) for file in Path(records).iterdir()])
    return max(parallel, alone, run_pytest("test_soak.py", 0, arguments))


def run_sample(arguments: list[str]) -> int:
    """Run a few cells in parallel, then a minute of the soak."""
    for name, value in (("SOAK_EPISODES", "24"), ("SOAK_SECONDS", "60")):
        os.environ.setdefault(name, value)
    cells, soak = SAMPLE
    return max(run_pytest(cells, 6, arguments), run_pytest(soak, 0, arguments))


def chooses(file: str, arguments: list[str]) -> bool:
    """True if the arguments select a test of the file. This check is faster than the installation of a release."""
    command = [sys.executable, "-m", "pytest", *arguments, "-q", "-n", "0", "--collect-only", str(HERE / file)]
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    return done.returncode != pytest.ExitCode.NO_TESTS_COLLECTED


def run_pytest(file: str, processes: int, arguments: list[str]) -> int:
    """Run the tests of a file. Returns 0 if the arguments select none of them."""
    ours = ("--tb=short", "-s", "-n", str(processes), "--dist", "load")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments, *ours, str(HERE / file)], check=False)
    return 0 if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED else done.returncode
