"""Files of a row's commit from a git repository on this machine, in place of its image."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from dgym.benchmarks.datasets.adapter import Row
from dgym.errors import ManifestError
from dgym.untrusted import read_regular

_REVISION = re.compile(r"[0-9a-f]{7,64}(\^|~[0-9]{1,4})?")
_SHA256_DIGITS = 64
_SECONDS = 600


class Checkouts:
    """Exports commits of the repositories below ``repositories`` to ``target``, each once and without history.

    The repository of a row ``owner/name`` is the directory ``owner/name``, ``owner__name`` or ``name``.
    """

    def __init__(self, repositories: Path, target: Path) -> None:
        self._repositories = repositories
        self._target = target

    def __call__(self, row: Row) -> str:
        """The directory with the files of the row's revision.

        Raises:
            ManifestError: There is no such repository or commit.
        """
        if not _REVISION.fullmatch(row.revision):
            raise ManifestError(f"instance {row.instance}: {row.revision!r} is not the hash of a commit")
        repository = self._find(row)
        commit, *before = re.split(r"[\^~]", row.revision)
        destination = self._target / "-".join((row.repository.replace("/", "__"), commit[:12], *before))
        if not destination.is_dir():
            destination.parent.mkdir(parents=True, exist_ok=True)
            building = Path(tempfile.mkdtemp(dir=destination.parent.absolute()))
            try:
                self._export(repository, row, building)
                building.rename(destination)
            finally:
                shutil.rmtree(building, ignore_errors=True)
        return str(destination)

    def _find(self, row: Row) -> Path:
        owner_and_name = row.repository
        names = (owner_and_name, owner_and_name.replace("/", "__"), owner_and_name.rpartition("/")[2])
        for name in names:
            if name and (self._repositories / name).is_dir():
                return self._repositories / name
        raise ManifestError(
            f"instance {row.instance}: {self._repositories} holds no repository {owner_and_name!r}; clone it there as"
            f" {names[1]!r}"
        )

    def _export(self, repository: Path, row: Row, building: Path) -> None:
        try:
            self._check_out(_objects(repository), row.revision, building)
        except (OSError, subprocess.SubprocessError) as error:
            lines = error.stderr.strip().splitlines() if isinstance(error, subprocess.CalledProcessError) else []
            why = lines[-1] if lines else error
            raise ManifestError(f"instance {row.instance}: {repository}: commit {row.revision}: {why}") from None
        building.chmod(0o755)

    @staticmethod
    def _check_out(objects: Path, revision: str, building: Path) -> None:
        """Write the files of a commit by a repository of ours that has only the objects of the other.

        The configuration, hooks and references of a foreign repository are not read: they name programs, such as
        filters, that git would run.
        """
        with tempfile.TemporaryDirectory() as ours:
            form = "sha256" if len(revision.partition("^")[0].partition("~")[0]) == _SHA256_DIGITS else "sha1"
            commands = (
                ["init", "-q", "--bare", "--template=", f"--object-format={form}"],
                [f"--work-tree={building}", "read-tree", revision],
                [f"--work-tree={building}", "checkout-index", "--all", f"--prefix={building}/"],
            )
            environment = {
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": ours,
                "LC_ALL": "C.UTF-8",
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_CONFIG_GLOBAL": os.devnull,
                "GIT_DIR": ours,
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{_escaped(objects)}"',
            }
            for command in commands:
                subprocess.run(
                    ["git", *command],
                    cwd=building,
                    env=environment,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=_SECONDS,
                    check=True,
                )


def _escaped(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace('"', '\\"')


def _objects(repository: Path) -> Path:
    """The directory of a repository's objects: of a bare one, of one with a work tree, of a linked work tree.

    Raises:
        OSError: It cannot be read.
    """
    place = repository.resolve() / ".git"
    if not place.exists():
        return repository.resolve() / "objects"
    if place.is_dir():
        return place / "objects"
    directory = place.parent / os.fsdecode(read_regular(place).removeprefix(b"gitdir:").strip())
    common = directory / "commondir"
    return (directory / os.fsdecode(read_regular(common).strip()) if common.exists() else directory) / "objects"
