"""Prepare a cluster for the tests, run pytest, clean up: ``python -m tests.e2e.cluster PYTEST-ARGUMENTS``.

``KUBECONFIG`` selects the cluster and ``DGYM_E2E_*_IMAGE`` name images that it has. hack/e2e sets these variables.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.cluster.faults.runs import run_staged
from tests.e2e.cluster.release import installed
from tests.e2e.cluster.services import addresses, deploy
from tests.e2e.cluster.support import new_namespace, unique
from tests.e2e.cluster.witness import witnessed

HERE = Path(__file__).parent
CHOOSING = ("-k", "-m", "-x", "--lf", "--last-failed", "--deselect", "--maxfail")
"""Options with which pytest runs only some of the tests."""


def main() -> int:
    """Exit status of pytest, the highest of all parts.

    Two operators must not serve one namespace. So the release that serves all namespaces is uninstalled before others
    are installed. Faults come last, since they stop the API server. Then all audited requests are compared with RBAC.
    """
    os.environ["DGYM_E2E_AUDIT_START"] = str(audited_so_far())
    with new_namespace("e2e-services") as services:
        os.environ["DGYM_E2E_SERVICES"] = json.dumps(addresses(services))
        sandbox, agent = (os.environ[f"DGYM_E2E_{each}_IMAGE"] for each in ("SANDBOX", "AGENT"))
        deploy(services, sandbox_image=sandbox, agent_image=agent)
        status = max(run_shared(), tests("own"), run_staged(sys.argv[1:], sample=True))
    chosen = any(argument.startswith(CHOOSING) for argument in sys.argv[1:])
    os.environ["DGYM_E2E_WHOLE"] = "0" if chosen or status else "1"
    return max(status, tests("rights"))


def run_shared() -> int:
    """Run the tests and attacks that share a release, then the tests that read what both have recorded."""
    bounded = os.environ["DGYM_E2E_BOUNDED_NAMESPACE"] = unique("e2e-bounded")
    policies = {"overrides": {bounded: {"maxActive": 1, "limits": {"maxSteps": 100}}}}
    with witnessed(), installed("system", watch=None, agents=1, values={"namespaces": policies}) as release:
        os.environ["DGYM_E2E_SYSTEM_NAMESPACE"] = release.kubectl.namespace
        return max(tests("shared"), tests("attacks"), tests("last"))


def audited_so_far() -> int:
    """Size of the audit log in bytes before this run. A cluster may serve several runs."""
    log = os.environ.get("DGYM_E2E_AUDIT_LOG")
    return Path(log).stat().st_size if log and Path(log).exists() else 0


def tests(folder: str) -> int:
    """Run a folder of tests. Returns 0 if the arguments select none of its tests."""
    print(f"tests of releases: {folder} …", flush=True)
    done = subprocess.run([sys.executable, "-m", "pytest", *sys.argv[1:], str(HERE / folder)], check=False)
    return 0 if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED else done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
