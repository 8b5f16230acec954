"""Measure ``dgym init``, ``check`` and ``run``: ``make repositories``, or ``python -m tests.repositories [NAME…]``.

Each package's source distribution is converted to a git repository with a tag, without the generated files of a
distribution. The tests are run in a virtual environment as the developers make it, and with dgym without an edit. Then
``dgym run DIR --agent debug_agent`` runs an episode with a scripted model, which stops in a test. All results are kept
in a cache directory. A package is measured again if it is named, or with ``--again``. ``sample/`` has the developers'
tests of the six packages of ``--sample``.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.repositories.debugged import debug

HERE = Path(__file__).parent
PYTHON = Path(sys.executable)
ENOUGH = 0.95
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dgym-repositories"
_SECONDS = 600
_GENERATED = ("PKG-INFO", "*.egg-info")


class Failed(Exception):
    """A step of the measurement timed out or has an unexpected exit status."""


def packages() -> list[dict[str, Any]]:
    """The packages of packages.toml."""
    return list(tomllib.loads((HERE / "packages.toml").read_text())["package"])


def run(command: Sequence[str], *, cwd: Path, log: Path, accepted: Sequence[int] = (0,), **extra: str) -> int:
    """Run a program, append its output to ``log`` and return its exit status."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with log.open("ab") as output:
        output.write(f"$ {' '.join(command)}\n".encode())
        output.flush()
        try:
            status = subprocess.run(
                command,
                cwd=cwd,
                env={**kept, **extra},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(command)[:80]}: did not end within {_SECONDS} s; see {log}") from None
    if status not in accepted:
        raise Failed(f"{' '.join(command)[:80]}: status {status}; see {log}")
    return status


def checkout(package: dict[str, Any], place: Path) -> Path:
    """Create the git repository of the package, with a tag of its version."""
    root = place / "checkout" / package["name"]
    if (root / ".git").is_dir():
        return root
    shutil.rmtree(place, ignore_errors=True)
    (place / "sdist").mkdir(parents=True)
    name, version = package["name"], package["version"]
    log = place / "checkout.log"
    run(
        [
            str(PYTHON),
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            name,
            "-d",
            "sdist",
            f"{name}=={version}",
        ],
        cwd=place,
        log=log,
    )
    (archive,) = (place / "sdist").iterdir()
    with tarfile.open(archive) as file:
        file.extractall(place / "unpacked", filter="data")
    (unpacked,) = (place / "unpacked").iterdir()
    for pattern in (*_GENERATED, *package.get("generated", ())):
        for path in [*unpacked.rglob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    _forget_egg_info(unpacked)
    root.parent.mkdir()
    unpacked.rename(root)
    git = ["git", "-c", "user.name=somebody", "-c", "user.email=somebody@example.com"]
    run(["git", "init", "-q"], cwd=root, log=log)
    run(["git", "add", "-A"], cwd=root, log=log)
    run([*git, "commit", "-q", "-m", "everything"], cwd=root, log=log)
    run([*git, "tag", package.get("tag", "{version}").format(version=version)], cwd=root, log=log)
    return root


def _forget_egg_info(root: Path) -> None:
    """Remove the section that setuptools appends to a distribution's setup.cfg."""
    path = root / "setup.cfg"
    if path.is_file():
        text = path.read_text()
        text = text.replace("[egg_info]\ntag_build = \ntag_date = 0\n", "")
        path.write_text(text) if text.strip() else path.unlink()


def developers_tests(package: dict[str, Any], place: Path) -> list[str]:
    """The tests that pass in an environment as the package's developers make it."""
    found = place / "developer.json"
    if package.get("sample") and (kept := HERE / "sample" / f"{package['name']}.json").is_file():
        return list(json.loads(kept.read_text()))
    if not found.is_file():
        log = place / "developer.log"
        log.unlink(missing_ok=True)
        copy = place / "developer" / package["name"]
        shutil.rmtree(copy.parent, ignore_errors=True)
        shutil.copytree(place / "checkout" / package["name"], copy, symlinks=True)
        environment = copy.parent / "venv"
        python = str(environment / "bin" / "python")
        path = f"{environment / 'bin'}:{os.environ['PATH']}"
        if uv := shutil.which("uv"):
            run([uv, "venv", "-q", "--python", str(PYTHON), str(environment)], cwd=place, log=log)
            install = [uv, "pip", "install", "-q", "--python", python]
        else:
            run([str(PYTHON), "-m", "venv", str(environment)], cwd=place, log=log)
            install = [python, "-m", "pip", "install", "-q"]
        run([*install, "pytest", *package["install"]], cwd=copy, log=log, PATH=path)
        run(
            [python, "-m", "pytest", "-q", "-p", "outcomes_plugin", *package.get("tests", ())],
            cwd=copy,
            log=log,
            accepted=(0, 1),
            PATH=path,
            OUTCOMES=str(copy.parent / "outcomes.json"),
            PYTHONPATH=str(HERE),
        )
        if not (copy.parent / "outcomes.json").is_file():
            raise Failed(f"pytest ended early; see {log}")
        (copy.parent / "outcomes.json").rename(found)
        shutil.rmtree(copy.parent)
    return list(json.loads(found.read_text()))


def counted_tests(package: dict[str, Any], place: Path) -> tuple[list[str], float]:
    """The tests that count after ``dgym init`` and ``dgym check``, and the seconds for both commands."""
    log = place / "dgym.log"
    log.unlink(missing_ok=True)
    work = place / "dgym"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    root = place / "checkout" / package["name"]
    dgym = str(PYTHON.parent / "dgym")
    began = time.monotonic()
    manifest = work / "task.yaml"
    run([dgym, "init", str(root), "--output", str(manifest)], cwd=work, log=log)
    arguments = ["check", str(manifest), "--allow-local-path", str(root), "--repeat", "1", "--output", "json"]
    checked = work / "check.json"
    with checked.open("wb") as output, log.open("ab") as errors:
        try:
            subprocess.run(
                [dgym, *arguments],
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"dgym check: did not end within {_SECONDS} s; see {log}") from None
    try:
        (assessment,) = json.loads(checked.read_text())
    except ValueError:
        raise Failed(f"dgym check printed no assessment; see {log}") from None
    return assessment.get("passToPass", []), time.monotonic() - began


def measure(package: dict[str, Any], cache: Path) -> dict[str, Any]:
    """Measure a package and return its result."""
    place = cache / f"{package['name']}-{package['version']}"
    result: dict[str, Any] = {"package": package["name"], "version": package["version"], "share": 0.0}
    result["measured"] = _conditions()
    try:
        checkout(package, place)
        wanted = developers_tests(package, place)
        result["developer"] = len(wanted)
        counted, seconds = counted_tests(package, place)
    except Failed as failure:
        return {**result, "failure": str(failure).replace(str(place), "…")}
    missing = sorted({*wanted} - {*counted})
    (place / "missing.json").write_text(json.dumps(missing, indent=1))
    share = 1 - len(missing) / len(wanted) if wanted else 0.0
    result |= {"counted": len(wanted) - len(missing), "share": round(share, 4), "seconds": round(seconds)}
    work = place / "debugged"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    tests = [test for test in wanted if test not in missing]
    episode = debug(place / "checkout" / package["name"], work, tests, package.get("tests", ()))
    good = episode["stop"] and not episode["message"] and (episode["score"] or 0) >= ENOUGH * len(wanted)
    return {**result, "debug_agent": episode, "debugged": good}


def _conditions() -> str:
    """Conditions of a measurement: dgym's code, the version of Python, and the resolver of requirements."""
    tree = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD:dgym"], cwd=HERE, capture_output=True, text=True, check=True
    ).stdout.strip()
    resolver = "uv" if shutil.which("uv") else "pip"
    return f"git tree {tree} of dgym under Python {sys.version_info[0]}.{sys.version_info[1]} with {resolver}"


def table(results: Sequence[dict[str, Any]], known: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The lines of the page with the results, in Markdown."""
    kinds = {package["name"]: package for package in known}
    good = sum(result["share"] >= ENOUGH for result in results)
    yield "# `dgym init` and `dgym check` on packages from PyPI"
    yield ""
    yield "Written by `make repositories`; packages.toml has the environments. A package is right if at least"
    yield f"{ENOUGH:.0%} of the tests that pass in its developers' environment count: {good} of {len(results)}."
    yield ""
    debugged = sum(bool(result.get("debugged")) for result in results)
    yield '`debug_agent`: `dgym run DIR --entrypoint "python -m pytest -q" --agent debug_agent` with a scripted model'
    yield "that sets a breakpoint in a test, continues to it, takes a step, views the file and submits. It is right if"
    yield f"the program stopped there and the episode ended with an outcome and a score of at least {ENOUGH:.0%} of the"
    yield f"developers' tests: {debugged} of {len(results)}."
    yield ""
    conditions = sorted({str(result.get("measured", "unknown")) for result in results})
    runs = "one run" if len(conditions) == 1 else "several runs"
    yield f"Measured in {runs}: {'; '.join(conditions)}. Seconds depend on what else the machine does."
    yield ""
    yield "| package | what it is | developers' tests | of these count | share | seconds | debug_agent | why not all |"
    yield "|---|---|---|---|---|---|---|---|"
    for result in results:
        package = kinds[result["package"]]
        why = package.get("why", "") if result["share"] < 1 or not result.get("debugged") else ""
        cells = [
            f"{result['package']} {result['version']}",
            package["kind"],
            *(str(result.get(name, "")) for name in ("developer", "counted")),
            f"{result['share']:.1%}",
            str(result.get("seconds", "")),
            _episode(result),
            result.get("failure", "") or why,
        ]
        yield f"| {' | '.join(cells)} |"


def _episode(result: dict[str, Any]) -> str:
    """The table cell with the outcome of ``debug_agent``'s episode."""
    episode = result.get("debug_agent")
    if episode is None:
        return "not run"
    shown = f"{episode['reason']} {episode.get('score')}/{episode.get('maxScore')}, {episode['seconds']} s"
    return shown if episode["stop"] else f"{shown}, no stop"


def main() -> int:
    """Measure, print the shares, and write the table with ``--write``."""
    parser = argparse.ArgumentParser(prog="python -m tests.repositories", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="packages (default: all)")
    parser.add_argument("--sample", action="store_true", help="the six packages of CI")
    parser.add_argument("--again", action="store_true", help="measure packages again that were measured")
    parser.add_argument("--developer", action="store_true", help="only make the developers' measurements")
    parser.add_argument("--cache", type=Path, default=_CACHE, help="where everything is kept")
    parser.add_argument("--write", action="store_true", help="write tests/repositories/RESULTS.md")
    options = parser.parse_args()
    known = packages()
    chosen = [
        package
        for package in known
        if (not options.names or package["name"] in options.names) and (not options.sample or package.get("sample"))
    ]
    options.cache.mkdir(parents=True, exist_ok=True)
    cache = options.cache.resolve()
    results = []
    for package in chosen:
        place = cache / f"{package['name']}-{package['version']}"
        kept = place / "result.json"
        if options.developer:
            try:
                checkout(package, place)
                number = len(developers_tests(package, place))
            except Failed as failure:
                print(f"{package['name']}: {failure}", flush=True)
            else:
                print(f"{package['name']}: {number} tests pass", flush=True)
            continue
        if options.again or options.names or options.sample or not kept.is_file():
            result = measure(package, cache)
            if place.is_dir():
                kept.write_text(json.dumps(result))
        result = json.loads(kept.read_text()) if kept.is_file() else result
        results.append(result)
        shown = f"{result.get('counted', 0)} of {result.get('developer', '?')}"
        summary = f"{_episode(result)} {result.get('failure', '')}".rstrip()
        print(f"{result['package']}: {shown} ({result['share']:.1%}), debug_agent {summary}", flush=True)
    if options.developer:
        return 0
    good = sum(result["share"] >= ENOUGH for result in results)
    print(f"{good} of {len(results)} packages are right")
    if options.write:
        (HERE / "RESULTS.md").write_text("\n".join(table(results, known)) + "\n")
    debugged = sum(bool(result.get("debugged")) for result in results)
    print(f"{debugged} of {len(results)} episodes of debug_agent are right")
    return 0 if not options.sample or good == debugged == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
