"""Mutate a sample of the code and count the mutants that the tests of their package find.

The operators are those of cosmic-ray, and this program runs under an interpreter that has it: ``make mutation``. Each
mutant is tried in a copy of a commit, so the checkout does not change. Exit status 1 if the tests of a package fail
without a mutation.
"""

import argparse
import contextlib
import io
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from tests.mutation.packages import PACKAGES

ROOT = Path(__file__).parents[2]
_GRACE_SECONDS = 90.0
"""Added to the timeout of a mutant, because the machine may be busy."""
_SLOWER = 4.0
"""Timeout of a mutant, as a multiple of the time that the tests take without a mutation."""
_SKIPPED = ("core/Variable", "core/ReplaceBinaryOperator_BitOr", "core/ReplaceBinaryOperator_BitAnd")
"""Operators that need arguments, and operators that change type annotations more often than code."""


@dataclass(frozen=True)
class Mutant:
    """A file with a mutation."""

    package: str
    path: str
    line: int
    operator: str
    source: str
    change: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.operator}: {self.change}"


def _operators() -> dict[str, Any]:
    names = (name for name in operator_names() if not name.startswith(_SKIPPED))
    return {name: get_operator(name)() for name in names if not _compares_identity(name)}


def _compares_identity(name: str) -> bool:
    """True if the mutation replaces == or an order by ``is``. These are mostly equivalent, or found by any test."""
    return "Comparison" in name and name.endswith(("_Is", "_IsNot")) and "_Is_" not in name and "_IsNot_" not in name


def _sites(source: str, operators: dict[str, Any]) -> list[list[tuple[str, int, int]]]:
    """Operator, occurrence and line of the mutations of a file, grouped by expression and kind of mutation."""
    found = defaultdict(list)
    counts: Counter[str] = Counter()
    for node in ast_nodes(get_ast(source)):
        for name, operator in operators.items():
            for start, _ in operator.mutation_positions(node):
                found[start, name.partition("_")[0]].append((name, counts[name], start[0]))
                counts[name] += 1
    return list(found.values())


def draw(root: Path, count: int, seed: int) -> list[Mutant]:
    """A sample of ``count`` mutants, in proportion to the lines of the packages."""
    operators, generator = _operators(), random.Random(seed)
    files = {package: sorted((root / package).rglob("*.py")) for package in PACKAGES}
    lines = {package: sum(path.read_text().count("\n") for path in paths) for package, paths in files.items()}
    mutants = []
    for package, paths in files.items():
        sites = [(path, site) for path in paths for site in _sites(path.read_text(), operators)]
        for path, site in generator.sample(sites, -(-count * lines[package] // sum(lines.values()))):
            name, occurrence, line = generator.choice(site)
            source = path.read_text()
            mutated = mutate_code(source, operators[name], occurrence)
            assert mutated is not None
            change = _changed_line(source, mutated)
            short = name.removeprefix("core/")
            mutants.append(Mutant(package, str(path.relative_to(root)), line, short, mutated, change))
    generator.shuffle(mutants)
    return mutants


def _changed_line(before: str, after: str) -> str:
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    return next((f"{old.strip()} -> {new.strip()}" for old, new in pairs if old != new), "lines removed")


class Copy:
    """A copy of the commit, in which mutants are tried one after the other."""

    def __init__(self, archive: bytes, python: Path) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="mutation-"))
        # A short path, because the path of a socket is limited.
        self._temporary = Path(tempfile.mkdtemp(prefix="m"))
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(self.root, filter="fully_trusted")
        self._python = self._interpreter(python)

    def _interpreter(self, python: Path) -> Path:
        """An environment that imports the copy, also in isolated mode, where ``PYTHONPATH`` has no effect."""
        environment = self.root / ".venv"
        subprocess.run([str(python), "-m", "venv", "--without-pip", str(environment)], check=True)
        own, packages = (
            subprocess.check_output(
                [str(each), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
            )
            for each in (environment / "bin/python", python)
        )
        paths = f"{self.root}\n{self.root / 'operator'}\n{packages}"
        (Path(own.strip()) / "mutated.pth").write_text(paths)
        for script in filter(Path.is_file, python.parent.iterdir()):
            # The tests run pytest and dgym by name. The first line of each such script names its interpreter.
            copy = environment / "bin" / script.name
            if not copy.exists() and script.read_bytes().startswith(b"#!"):
                shutil.copy(script, copy)
                copy.write_bytes(copy.read_bytes().replace(bytes(python.parent), bytes(environment / "bin"), 1))
        return environment / "bin/python"

    def run(self, runs: Sequence[str], seconds: float) -> str:
        """Run the tests. Returns ``passed``, ``failed`` or ``timeout``."""
        end = time.monotonic() + seconds
        for arguments in runs:
            if (outcome := self._run(arguments, end - time.monotonic())) != "passed":
                return outcome
        return "passed"

    def _run(self, arguments: str, seconds: float) -> str:
        # With CI hypothesis draws the same examples each time.
        environment = {**os.environ, "CI": "1", "TMPDIR": str(self._temporary)}
        options = ("-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist")
        process = subprocess.Popen(
            [str(self._python), "-m", "pytest", *options, *shlex.split(arguments)],
            cwd=self.root,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return "failed" if process.wait(max(seconds, 0.0)) else "passed"
        except subprocess.TimeoutExpired:
            return "timeout"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for left in self._temporary.iterdir():
                shutil.rmtree(left, ignore_errors=True)

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Write the mutation into the file, and restore the file at the end of the block."""
        path = self.root / mutant.path
        before, times = path.read_bytes(), (path.stat().st_atime, path.stat().st_mtime)
        path.write_text(mutant.source)
        try:
            yield
        finally:
            path.write_bytes(before)
            os.utime(path, times)

    def remove(self) -> None:
        """Delete the copy."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(self._temporary, ignore_errors=True)


def _in_copies(copies: Sequence[Copy], items: Iterable[Any], work: Callable[[Copy, Any], None], end: float) -> None:
    """Call ``work`` with each item, in all copies in parallel. No item is started after ``end``."""
    waiting: SimpleQueue[Any] = SimpleQueue()
    for item in items:
        waiting.put(item)

    def run(copy: Copy) -> None:
        with contextlib.suppress(Empty):
            while time.monotonic() < end:
                work(copy, waiting.get_nowait())

    with ThreadPoolExecutor(len(copies)) as pool:
        list(pool.map(run, copies))


def _measure(copies: Sequence[Copy]) -> dict[str, float]:
    """Seconds that the tests of each package take without a mutation. Infinite if they fail."""
    seconds = {}

    def measure(copy: Copy, package: str) -> None:
        started = time.monotonic()
        passed = copy.run(PACKAGES[package], 3600.0) == "passed"
        seconds[package] = time.monotonic() - started if passed else float("inf")
        print(f"{package}: {seconds[package]:.0f} s without a mutation", file=sys.stderr, flush=True)

    _in_copies(copies, PACKAGES, measure, float("inf"))
    return seconds


def _judge(
    copies: Sequence[Copy], mutants: Sequence[Mutant], seconds: dict[str, float], end: float
) -> dict[Mutant, str]:
    """``killed``, ``timeout`` or ``survived`` for each mutant that was started before ``end``."""
    results = {}

    def judge(copy: Copy, mutant: Mutant) -> None:
        with copy.mutated(mutant):
            outcome = copy.run(PACKAGES[mutant.package], _SLOWER * seconds[mutant.package] + _GRACE_SECONDS)
        results[mutant] = {"passed": "survived", "failed": "killed"}.get(outcome, outcome)
        print(f"{len(results)} of {len(mutants)}: {results[mutant]} {mutant}", file=sys.stderr, flush=True)

    _in_copies(copies, mutants, judge, end)
    return results


def _report(results: dict[Mutant, str]) -> None:
    print(f"{'package':36} {'mutants':>8} {'killed':>8} {'timeout':>8} {'survived':>8}")
    for name in (*PACKAGES, ""):
        counts = Counter(outcome for mutant, outcome in results.items() if name in ("", mutant.package))
        row = (sum(counts.values()), *(counts[outcome] for outcome in ("killed", "timeout", "survived")))
        print(f"{name or 'all':36} " + " ".join(f"{number:8}" for number in row))
    print("\nsurvived:")
    for mutant in sorted(results, key=str):
        if results[mutant] == "survived":
            print(mutant)


def main() -> int:
    """Draw mutants, run the tests for each, and print the counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--python", type=Path, default=ROOT / ".venv/bin/python", help="runs the tests")
    parser.add_argument("--commit", default="HEAD", help="whose code is mutated, and whose tests run")
    parser.add_argument("--count", type=int, default=300, help="of mutants")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--processes", type=int, default=2, help="mutants that are tried at a time")
    parser.add_argument("--seconds", type=float, default=86400.0, help="no mutant is begun afterwards")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    archive = subprocess.run(["git", "archive", options.commit], cwd=ROOT, check=True, capture_output=True).stdout
    copies = [Copy(archive, options.python.absolute()) for _ in range(options.processes)]
    try:
        seconds = _measure(copies)
        if failed := [package for package in seconds if seconds[package] == float("inf")]:
            print(f"the tests fail without a mutation: {', '.join(failed)}", file=sys.stderr)
            return 1
        _report(_judge(copies, draw(copies[0].root, options.count, options.seed), seconds, end))
    finally:
        for copy in copies:
            copy.remove()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
