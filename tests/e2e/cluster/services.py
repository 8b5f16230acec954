"""Services outside the episodes' pods: repositories over HTTP, and a model. Each is a pod behind a Service."""

import base64
import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.cluster.episodes import FILES
from tests.e2e.cluster.support import DEADLINE, ROOT, Kubectl

REPOSITORIES = "repositories"
MODEL = "model"
PORTS = {REPOSITORIES: 8000, MODEL: 8000}
MODEL_SECONDS = 0.3
"""Latency of the model's answers. It makes sure that a killed agent pod is in the middle of a request."""
SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 10003,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


class Archives(NamedTuple):
    """The buggy repository in two forms: a bare git repository, and a tar."""

    git: bytes
    revision: str
    archive: bytes

    @property
    def sha256(self) -> str:
        """Digest of the archive."""
        return hashlib.sha256(self.archive).hexdigest()


def make_archives() -> Archives:
    """Pack the repository. The archive has the same bytes each time."""
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory) / "work"
        work.mkdir()
        for path, content in FILES.items():
            (work / path).write_text(content)
        archive = _tar(work)
        _git(work, "init", "--quiet", "--initial-branch=main")
        _git(work, "add", ".")
        _git(work, "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "--quiet", "-m", "Add sums")
        revision = _git(work, "rev-parse", "HEAD")
        _git(Path(directory), "clone", "--quiet", "--bare", str(work), "sums.git")
        bare = Path(directory) / "sums.git"
        # git cannot clone from a plain file server without the files that this command writes.
        _git(bare, "update-server-info")
        return Archives(_tar(bare), revision, archive)


def deploy(kubectl: Kubectl, *, sandbox_image: str, agent_image: str) -> None:
    """Start the pods of both Services. Returns once they are ready."""
    archives = make_archives()
    files = {"sums.git.tar": archives.git, "sums.tar": archives.archive}
    fakes = {path.name: path.read_bytes() for path in sorted((ROOT / "tests" / "fakes").glob("openai_*.py"))}
    unpack = (
        "mkdir -p /srv/www/sums.git && cd /srv/www && tar -C sums.git -xf /data/sums.git.tar && cp /data/sums.tar ."
    )
    serve = f"{unpack} && exec python3 -m http.server {PORTS[REPOSITORIES]}"
    model = ["python", "/data/tests/fakes/openai_server.py", "--host", "0.0.0.0", "--latency", str(MODEL_SECONDS)]
    kubectl.apply(
        _config_map(REPOSITORIES, files),
        _config_map(MODEL, fakes),
        _pod(REPOSITORIES, sandbox_image, ["sh", "-c", serve], "/data"),
        _pod(MODEL, agent_image, [*model, "--port", str(PORTS[MODEL])], "/data/tests/fakes"),
    )
    kubectl("wait", "--for=condition=Ready", "pod", "--all", f"--timeout={DEADLINE:g}s")


def address(name: str) -> str:
    """``host:port`` of a Service that all tests of this run share."""
    found: str = json.loads(os.environ["DGYM_E2E_SERVICES"])[name]
    return found


def addresses(kubectl: Kubectl) -> dict[str, str]:
    """Create the Services if they do not exist. Returns the ``host:port`` of each."""
    kubectl.apply(*(_service(name) for name in PORTS))
    return {name: f"{kubectl.get('service', name)['spec']['clusterIP']}:{port}" for name, port in PORTS.items()}  # type: ignore[index]


def _git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def _tar(directory: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(directory.iterdir()):
            tar.add(path, path.name, filter=_timeless)
    return packed.getvalue()


def _timeless(member: tarfile.TarInfo) -> tarfile.TarInfo:
    # The server packs the archive, and a client packs it again to compute its digest.
    member.mtime = 0
    return member


def _config_map(name: str, files: dict[str, bytes]) -> dict[str, Any]:
    data = {path: base64.b64encode(content).decode() for path, content in files.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "binaryData": data}


def _service(name: str) -> dict[str, Any]:
    spec = {"selector": {"app": name}, "ports": [{"port": PORTS[name]}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def _pod(name: str, image: str, command: list[str], mount: str) -> dict[str, Any]:
    container = {
        "name": "server",
        "image": image,
        "command": command,
        "securityContext": SECURITY,
        "readinessProbe": {"tcpSocket": {"port": PORTS[name]}, "periodSeconds": 1},
        "volumeMounts": [{"name": "data", "mountPath": mount}, {"name": "www", "mountPath": "/srv/www"}],
    }
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "data", "configMap": {"name": name}}, {"name": "www", "emptyDir": {}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}
