"""Reader of the files that the agent pods of a release have stored."""

import io
import subprocess
import tarfile

from tests.e2e.cluster.support import DEADLINE, Kubectl

RESULTS = "/var/lib/dgym/results"
AGENTS = "app.kubernetes.io/component=agent"
_PACK = """
import sys, tarfile
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
    tar.add(sys.argv[1], "results")
"""


def read_stored(system: Kubectl, namespace: str = "") -> dict[str, bytes]:
    """The stored files by path, for the episodes of one namespace or of all namespaces."""
    agent = system.items("pods", AGENTS)[0]["metadata"]["name"]
    command = ("kubectl", "--namespace", system.namespace, "exec", agent, "--", "python", "-c", _PACK)
    done = subprocess.run([*command, f"{RESULTS}/{namespace}"], capture_output=True, timeout=DEADLINE, check=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        opened = ((member.name, tar.extractfile(member)) for member in tar.getmembers())
        return {name: file.read() for name, file in opened if file is not None}
