"""Faults on a real cluster: ``python -m tests.e2e.cluster.faults PYTEST-ARGUMENTS``; ``--sample`` runs some of them.

hack/e2e prepares the cluster and the images. What the cells of the matrix ended with goes to ``results.json``.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.e2e.cluster.release import Release, merged, values_for_tests
from tests.e2e.cluster.services import addresses, deploy
from tests.e2e.cluster.support import new_namespace

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"


def main(arguments: list[str]) -> int:
    """The exit status of pytest."""
    with new_namespace("e2e-services") as services, new_namespace("e2e-faulty") as watched:
        os.environ["DGYM_E2E_SERVICES"] = json.dumps(addresses(services))
        sandbox, agent = (os.environ[f"DGYM_E2E_{each}_IMAGE"] for each in ("SANDBOX", "AGENT"))
        deploy(services, sandbox_image=sandbox, agent_image=agent)
        return with_stage(watched.namespace, arguments)


def with_stage(watched: str, arguments: list[str]) -> int:
    """Install a release with three agents, and run the tests against it."""
    with new_namespace("e2e-faults") as kubectl:
        values = merged(values_for_tests(watch=watched, agents=3), {"crds": {"enabled": True}})
        release = Release("faults", kubectl.namespace, values)
        release.install()
        os.environ["DGYM_E2E_FAULT_STAGE"] = json.dumps([release.name, kubectl.namespace, watched])
        try:
            return recorded(arguments)
        finally:
            release.uninstall()


def recorded(arguments: list[str]) -> int:
    """Run pytest: what concerns one episode or agent in parallel, what concerns all one by one."""
    with tempfile.TemporaryDirectory() as records:
        os.environ["DGYM_E2E_FAULT_RECORDS"] = records
        parallel = run_pytest("test_matrix.py", "-n", "5", "--dist", "loadgroup", *arguments)
        alone = run_pytest("test_everybody.py", "-n", "0", *arguments)
        cells = [json.loads(file.read_text()) for file in Path(records).iterdir()]
    merge(cells)
    return max(parallel, alone)


def run_pytest(file: str, *arguments: str) -> int:
    """The exit status; that the arguments choose none of the tests is no failure."""
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", str(HERE / file), *arguments], check=False)
    return 0 if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED else done.returncode


def merge(cells: list[dict[str, object]]) -> None:
    """Write the cells over those of earlier runs, sorted: what was not run now stays as it was."""
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    table = {(cell["fault"], cell["moment"]): cell for cell in (*before, *cells)}
    ordered = [table[key] for key in sorted(table)]
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
