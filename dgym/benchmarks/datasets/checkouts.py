"""Files of a row's commit from a git repository on this machine, in place of its image."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from dgym.benchmarks.datasets.adapter import Row
from dgym.errors import ManifestError

_SETTINGS = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "safe.directory=*")


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
        repository = self._find(row)
        destination = self._target / f"{row.repository.replace('/', '__')}-{row.revision[:12]}"
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
        revision = row.revision
        if not revision or revision.startswith("-"):
            raise ManifestError(f"instance {row.instance}: {revision!r} is no revision")
        with tempfile.TemporaryDirectory() as scratch:
            environment = {**os.environ, "GIT_INDEX_FILE": str(Path(scratch, "index"))}
            for command in (["read-tree", revision], ["checkout-index", "--all", f"--prefix={building}/"]):
                done = subprocess.run(
                    ["git", "-C", str(repository), *_SETTINGS, *command],
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode != 0:
                    why = done.stderr.strip().splitlines()[-1:] or ["git failed"]
                    raise ManifestError(f"instance {row.instance}: {repository}: commit {revision}: {why[0]}")
        building.chmod(0o755)
