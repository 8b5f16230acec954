"""Builds a release twice, in circumstances that should not matter, and compares; then uses what was built."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hack.release.build import Builder, ReleaseError, export, read_sums

_OTHER = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "LANG": "C", "PYTHONHASHSEED": "7"}
_OLD = 86400 * 365
_SECONDS = 600


def check(repository: Path, output: Path, images: Sequence[str], registry: str) -> None:
    """Build into ``output``, and again elsewhere; then install the wheel and run the demo's tasks.

    Raises:
        ReleaseError: The two differ, or what was built does not work.
    """
    with tempfile.TemporaryDirectory(prefix="dgym-release-") as name:
        first, second = Path(name, "one"), Path(name, "another", "and", "deeper")
        Builder(first, output, epoch=export(repository, first), registry=registry).build(images)
        epoch = export(repository, second)
        _age(second)
        with _elsewhere():
            Builder(second, Path(name, "again"), epoch=epoch, registry=registry).build(images)
        if differing := differences(read_sums(output), read_sums(Path(name, "again"))):
            raise ReleaseError(f"built twice, these differ: {', '.join(differing)}")
        run_demo(output, repository / "requirements" / "cli.txt", Path(name, "clean"))


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The names whose checksums differ, or that only one side has."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def run_demo(output: Path, requirements: Path, place: Path) -> None:
    """Install the wheel with its locked dependencies into a clean environment and run the demo's tasks from there."""
    place.mkdir()
    (wheel,) = output.glob("dgym-*.whl")
    python = str(place / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command = ("run", "--bundled", "mini_nightmare", "--agent", "replay", "--results", "results", "--sandbox")
    for step in (
        [sys.executable, "-m", "venv", str(place / "venv")],
        [*install, "--require-hashes", "--requirement", str(requirements)],
        [*install, str(wheel)],
        [python, "-m", "pip", "check"],
        [str(place / "venv" / "bin" / "dgym"), *command, _sandbox()],
    ):
        # Nothing of the checkout is near: neither its directory nor its environment.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(step, cwd=place, env=environment, capture_output=True, text=True, timeout=_SECONDS)
        if done.returncode:
            raise ReleaseError(f"the wheel, installed on its own: {' '.join(step)}\n{done.stdout}{done.stderr}"[-4000:])
    if "10 resolved" not in done.stdout:
        raise ReleaseError(
            f"the wheel, installed on its own, does not resolve the demo's tasks:\n{done.stdout[-4000:]}"
        )


def _sandbox() -> str:
    """The word for ``--sandbox`` that the demo uses on this machine."""
    script = Path(__file__).parents[1] / "demo_sandbox.py"
    command = [sys.executable, str(script)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def _age(directory: Path) -> None:
    """Give files other times, and modes of another umask."""
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            os.utime(path, (_OLD, _OLD))
            path.chmod(path.stat().st_mode & ~0o077)


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Another time zone, language, order of sets, and umask."""
    before, umask = dict(os.environ), os.umask(0o077)
    os.environ.update(_OTHER)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        os.umask(umask)
