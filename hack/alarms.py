"""Measures how often the review of patches marks honest changes: the differences of releases of packages on PyPI.

``python -m hack.alarms --wheels DIRECTORY`` downloads what the directory lacks and prints the table of docs/scoring.md.
"""

import argparse
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

from dgym.session.verification.review import is_test, review
from dgym.workspace.patches import FileVersion

PACKAGES = (
    *("attrs", "babel", "beautifulsoup4", "boltons", "cachetools", "click", "dateparser", "docutils", "filelock"),
    *("flask", "httpx", "humanize", "idna", "itsdangerous", "jinja2", "jsonschema", "markdown", "more-itertools"),
    *("packaging", "platformdirs", "pygments", "python-dateutil", "requests", "rich", "sqlparse", "tabulate"),
    *("tomlkit", "tqdm", "urllib3", "werkzeug"),
)
RELEASES = 5
FEW_FILES = 3


def versions_of(package: str) -> list[str]:
    """The newest final releases of a package, newest first."""
    shown = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", package], capture_output=True, text=True, check=True
    ).stdout
    listed = next(line for line in shown.splitlines() if line.startswith("Available versions:"))
    return [each for each in re.findall(r"[\w.]+", listed.partition(":")[2]) if re.fullmatch(r"[\d.]+", each)][
        :RELEASES
    ]


def download(package: str, version: str, directory: Path) -> Path | None:
    """The wheel of a release; None where there is none for this Python."""
    place = directory / package / version
    if not place.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run(
            [*command, "--dest", str(place), f"{package}=={version}"], check=False, stderr=subprocess.DEVNULL
        )
        place.mkdir(parents=True, exist_ok=True)
    return next(iter(sorted(place.glob("*.whl"))), None)


def sources_in(wheel: Path) -> dict[str, FileVersion]:
    """The library's modules in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: FileVersion(archive.read(name))
            for name in archive.namelist()
            if name.endswith(".py") and not is_test(name)
        }


def main(arguments: list[str]) -> int:
    """Measure, print the marks and the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wheels", type=Path, required=True, help="where the wheels are kept")
    wheels = parser.parse_args(arguments).wheels
    counted: Counter[str] = Counter()
    for package in PACKAGES:
        known = sorted(place.name for place in (wheels / package).glob("*"))
        versions = sorted(known or versions_of(package), key=lambda text: [int(part) for part in text.split(".")])
        found = [wheel for version in versions[-RELEASES:] if (wheel := download(package, version, wheels)) is not None]
        releases = [sources_in(wheel) for wheel in found]
        for wheel, before, after in zip(found[1:], releases, releases[1:], strict=False):
            changes = {
                path: (before.get(path), after.get(path))
                for path in {*before, *after}
                if before.get(path) != after.get(path)
            }
            marks = review(changes)
            few = len(changes) <= FEW_FILES
            counted.update(files=len(changes), marked_files=len({mark.file for mark in marks}), releases=bool(changes))
            counted.update(marked=bool(marks), few=few and bool(changes), marked_few=few and bool(marks))
            sys.stdout.writelines(f"{wheel.name}: {mark.detail}\n" for mark in marks)
        counted.update(packages=len(releases) > 1)
    sys.stdout.write(f"\n{counted['releases']} differences of {counted['packages']} packages\n")
    for title, part, whole in (
        ("changed library files", "marked_files", "files"),
        (f"releases with at most {FEW_FILES} changed files", "marked_few", "few"),
        ("all releases", "marked", "releases"),
    ):
        share = 100 * counted[part] / max(1, counted[whole])
        sys.stdout.write(f"| {title} | {counted[part]:,} of {counted[whole]:,} | {share:.1f} % |\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
