"""Imports images from podman or docker into the cluster's containerd, and creates the pause image."""

import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hack.cluster.machine import ClusterError, run, say, wait_until

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LOAD_SECONDS = 600


def find_engine(images: Sequence[str]) -> str:
    """Return the engine that has all these images.

    Raises:
        ClusterError: No engine is installed, or none has all images.
    """
    lacking: dict[str, list[str]] = {}
    for engine in ("podman", "docker"):
        if shutil.which(engine) is None:
            continue
        lacking[engine] = [image for image in images if image_id(engine, image) is None]
        if not lacking[engine]:
            return engine
    if not lacking:
        raise ClusterError("neither podman nor docker is on PATH: there is nothing to load images from")
    engine, names = min(lacking.items(), key=lambda item: len(item[1]))
    raise ClusterError(f"{engine} has no image {', '.join(names)}: build them with `hack/images` first")


def image_id(engine: str, image: str) -> str | None:
    """Return the current ID of an image, or None if the engine does not have it."""
    command = [engine, "image", "inspect", "--format", "{{.Id}}", image]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def load(images: Sequence[str], socket: Path, snapshotter: str, record: Path) -> None:
    """Import images that have changed since the last call, in one archive, so that shared layers are copied once."""
    engine = find_engine(images)
    loaded: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    current = {image: image_id(engine, image) or "" for image in images}
    changed = [image for image in images if loaded.get(image) != current[image]]
    if not changed:
        say("the cluster has these images already")
        return
    with tempfile.TemporaryDirectory(prefix="dgym-images-", dir=record.parent) as directory:
        archive = Path(directory) / "images.tar"
        several = ["--multi-image-archive"] if engine == "podman" else []
        run(engine, "save", *several, "-o", archive, *changed, timeout=LOAD_SECONDS)
        import_archive(archive, socket, snapshotter)
    record.write_text(json.dumps({**loaded, **current}))
    say(f"loaded {', '.join(changed)}")


def import_archive(archive: Path, socket: Path, snapshotter: str) -> None:
    """Import the images of an archive into containerd and unpack them."""
    options = ("--snapshotter", snapshotter, "--digests=false")
    run("ctr", "-a", socket, "-n", "k8s.io", "images", "import", *options, archive, timeout=LOAD_SECONDS)


def pause_archive(path: Path, name: str, binary: Path) -> None:
    """Write an image in docker's format that contains only one static binary."""
    layer = _tar({"pause": binary.read_bytes()}, mode=0o755)
    digest = hashlib.sha256(layer).hexdigest()
    configuration = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    path.write_bytes(_tar({"config.json": _json(configuration), "manifest.json": _json(manifest), "layer.tar": layer}))


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()


def _tar(files: Mapping[str, bytes], mode: int = 0o644) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def wait_for_containerd(socket: Path) -> None:
    """Wait until containerd answers. Its socket exists earlier."""

    def answers() -> bool:
        command = ["ctr", "-a", str(socket), "--connect-timeout", "1s", "version"]
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0

    wait_until(lambda: socket.exists() and answers(), 60, "containerd's answer")
