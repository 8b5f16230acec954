"""A cluster that somebody else runs: nothing is started or removed."""

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hack.cluster.machine import ClusterError, say


class ExistingCluster:
    """Whatever KUBECONFIG names."""

    name = "existing"
    audit_log = None

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._load_command = environment.get("E2E_LOAD_COMMAND", "")
        path = environment.get("KUBECONFIG", "")
        if not path:
            raise ClusterError("E2E_CLUSTER=existing needs KUBECONFIG, the path of that cluster's kubeconfig")
        if not Path(path).is_file():
            raise ClusterError(f"KUBECONFIG is {path}, and there is no such file")
        self.kubeconfig = Path(path).absolute()

    def up(self) -> None:
        """It runs."""
        say(f"using the existing cluster of {self.kubeconfig}")

    def down(self) -> None:
        """Leave it as it is."""
        say("an existing cluster is left as it is")

    def running(self) -> bool:
        """Somebody else's business."""
        return True

    def status(self) -> str:
        """Nothing is known but its name."""
        return str(self.kubeconfig)

    def load(self, names: Sequence[str]) -> None:
        """Its nodes pull images, unless somebody knows a command that brings them there."""
        if not self._load_command:
            raise ClusterError(
                "images cannot be loaded into an existing cluster: push them to a registry that its nodes pull from, "
                "or set E2E_LOAD_COMMAND, which is run with their names (such as `minikube image load`)"
            )
        done = subprocess.run([*shlex.split(self._load_command), *names], check=False)
        if done.returncode:
            raise ClusterError(f"`{self._load_command}` failed with exit code {done.returncode}")
