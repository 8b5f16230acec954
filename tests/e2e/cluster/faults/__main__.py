"""Faults on a real cluster: ``python -m tests.e2e.cluster.faults PYTEST-ARGUMENTS``.

hack/e2e prepares the cluster and the images. The cells of the matrix are written to docs/faults.md.
``E2E_FAULTS=sample`` runs six cells and a minute of the soak, as ``make e2e`` does. ``E2E_FAULT_RUNS`` is the number
of repetitions.
"""

import json
import os
import sys

from tests.e2e.cluster.faults.runs import run_staged
from tests.e2e.cluster.services import addresses, deploy
from tests.e2e.cluster.support import new_namespace


def main(arguments: list[str]) -> int:
    """Exit status of pytest. Stops after the first failed run."""
    runs = int(os.environ.get("E2E_FAULT_RUNS") or 1)
    with new_namespace("e2e-services") as services:
        os.environ["DGYM_E2E_SERVICES"] = json.dumps(addresses(services))
        sandbox, agent = (os.environ[f"DGYM_E2E_{each}_IMAGE"] for each in ("SANDBOX", "AGENT"))
        deploy(services, sandbox_image=sandbox, agent_image=agent)
        for run in range(1, runs + 1):
            print(f"faults: run {run} of {runs} …", flush=True)
            if status := run_staged(arguments, sample=os.environ.get("E2E_FAULTS") == "sample"):
                return status
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
