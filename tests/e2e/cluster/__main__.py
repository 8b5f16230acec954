"""Prepare a cluster for the tests, run pytest, clean up: ``python -m tests.e2e.cluster PYTEST-ARGUMENTS``.

``KUBECONFIG`` names the cluster, ``DGYM_E2E_*_IMAGE`` images that it has; hack/e2e sets them.
"""

import json
import os
import subprocess
import sys

from tests.e2e.cluster.release import installed
from tests.e2e.cluster.services import addresses, deploy
from tests.e2e.cluster.support import new_namespace


def main() -> int:
    """The exit status of pytest."""
    with new_namespace("e2e-services") as services:
        places = addresses(services)
        os.environ["DGYM_E2E_SERVICES"] = json.dumps(places)
        deploy(
            services,
            sandbox_image=os.environ["DGYM_E2E_SANDBOX_IMAGE"],
            agent_image=os.environ["DGYM_E2E_AGENT_IMAGE"],
        )
        with installed("system", watch=None, agents=1) as release:
            os.environ["DGYM_E2E_SYSTEM_NAMESPACE"] = release.kubectl.namespace
            print(f"dgym is installed in {release.kubectl.namespace}; running the tests …", flush=True)
            return subprocess.run([sys.executable, "-m", "pytest", *sys.argv[1:]], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
