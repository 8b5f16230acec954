"""``python -m dgym.sidecar.install RUNNER ETC``: copy the runner's files into a directory of the user's containers.

ETC gets copies of /etc/hosts, /etc/hostname and /etc/resolv.conf. Otherwise the containers of a pod would share these
files, and a program that runs as root in the sandbox could change files that the verifier reads.

The sidecar's postStart hook runs this program, and the kubelet starts the sandbox when it has ended. If the repository
is copied from an image, an init container runs it. The pod waits for it, so it imports few modules and no other modules
of dgym.
"""

import shutil
import sys
from pathlib import Path

_RUNNER = Path(__file__).resolve().parents[1] / "runner"
_LAST = "__main__.py"
_NAMES = ("hosts", "hostname", "resolv.conf")


def install(directory: Path, source: Path = _RUNNER) -> None:
    """Copy the runner's files, readable for all users.

    Each file is renamed to its final name, ``__main__.py`` last: an interrupted init container is run again, and if
    ``__main__.py`` exists, all files are complete.
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
    """Copy the files of /etc that the kubelet and the container runtime have written, readable for all users.

    For a file that the runtime does not write, an empty file is created, because a mount of a missing file would create
    a directory.
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
    """Install the files. Returns 1 if they cannot be installed, and 2 without two directories as arguments."""
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
