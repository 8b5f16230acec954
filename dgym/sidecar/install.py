"""``python -m dgym.sidecar.install RUNNER ETC``: put the runner where the user's containers start it from.

ETC gets copies of the files with the names of hosts, which the containers of a pod would share: programs of root could
write in the sandbox what the verifier reads.

The sidecar's postStart hook runs this, and the kubelet starts the sandbox once it has ended; where the repository is
copied out of an image, an init container does. The pod waits for it, so this imports next to nothing and nothing of the
rest of dgym.
"""

import shutil
import sys
from pathlib import Path

_RUNNER = Path(__file__).resolve().parents[1] / "runner"
_LAST = "__main__.py"
_NAMES = ("hosts", "hostname", "resolv.conf")


def install(directory: Path, source: Path = _RUNNER) -> None:
    """Copy the runner's files, readable for every user.

    Each is renamed into place, the file that starts them last: an init container that was interrupted runs again, and
    once the last file is there, all are.
    """
    files = [path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    for path in sorted(files, key=lambda path: (path == source / _LAST, path)):
        target = directory / path.relative_to(source)
        _make_directory(target.parent, directory)
        building = target.with_name(f".{target.name}.new")
        shutil.copyfile(path, building)
        building.chmod(0o644)
        building.replace(target)


def copy_names(directory: Path, source: Path = Path("/etc")) -> None:
    """Copy the pod's names of hosts, as the kubelet and the runtime have made them, readable for every user.

    A file that a runtime does not make is empty: a mount of what does not exist would be one of a directory.
    """
    for name in _NAMES:
        target = directory / name
        target.write_bytes((source / name).read_bytes() if (source / name).is_file() else b"")
        target.chmod(0o644)


def _make_directory(path: Path, root: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    # The mount point itself belongs to the kubelet.
    while path != root:
        path.chmod(0o755)
        path = path.parent


def main(arguments: list[str]) -> int:
    """1 when the files cannot be installed, 2 without both directories."""
    if len(arguments) != 2 or arguments[0].startswith("-"):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    try:
        copy_names(Path(arguments[1]))
        install(Path(arguments[0]))
    except OSError as error:
        sys.stderr.write(f"the runner could not be installed: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
