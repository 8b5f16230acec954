"""Measures how often the review of patches marks honest changes: the differences of releases of packages on PyPI.

``python -m hack.alarms --wheels DIRECTORY`` downloads what the directory lacks and prints the table of docs/scoring.md.
"""

import argparse
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dgym.session.scoring._integrity import Version, is_test, review
from dgym.workspace.patches import FileVersion

PACKAGES = (
    *("attrs", "babel", "beautifulsoup4", "boltons", "cachetools", "click", "dateparser", "docutils", "filelock"),
    *("flask", "httpx", "humanize", "idna", "itsdangerous", "jinja2", "jsonschema", "markdown", "more-itertools"),
    *("packaging", "platformdirs", "pygments", "python-dateutil", "requests", "rich", "sqlparse", "tabulate"),
    *("tomlkit", "tqdm", "urllib3", "werkzeug"),
)
RELEASES = 5
# Packages with a release after almost every commit, so that two successive releases differ by about one commit.
FREQUENT = (
    *("aiodhcpwatcher", "aiodiscover", "aioesphomeapi", "aiohomekit", "aiooui", "bleak-retry-connector"),
    *("bluetooth-adapters", "bluetooth-auto-recovery", "commitizen", "dbus-fast", "deepmerge", "faker", "flux-led"),
    *("google-auth", "govee-ble", "habluetooth", "inkbird-ble", "led-ble", "libcst", "mkdocstrings", "nexia"),
    *("oralb-ble", "polyfactory", "proto-plus", "pyproject-api", "pySwitchbot", "python-semantic-release"),
    *("sensor-state-data", "snakemake-interface-common", "textual", "thermopro-ble", "tox", "uiprotect"),
    *("ulid-transform", "usb-devices", "uvicorn", "virtualenv", "xiaomi-ble", "yalexs", "yalexs-ble", "zeroconf"),
)
FREQUENT_RELEASES = 12
FEW_FILES = 3

Sources = dict[str, FileVersion]


def versions_of(package: str, most: int) -> list[str]:
    """Return the newest ``most`` final releases of a package, newest first."""
    shown = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", package], capture_output=True, text=True, check=True
    ).stdout
    listed = next(line for line in shown.splitlines() if line.startswith("Available versions:"))
    return [each for each in re.findall(r"[\w.]+", listed.partition(":")[2]) if re.fullmatch(r"[\d.]+", each)][:most]


def download(package: str, version: str, directory: Path) -> Path | None:
    """Download the wheel of a release. Return None if there is no wheel for this Python."""
    place = directory / package / version
    if not place.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run(
            [*command, "--dest", str(place), f"{package}=={version}"], check=False, stderr=subprocess.DEVNULL
        )
        place.mkdir(parents=True, exist_ok=True)
    return next(iter(sorted(place.glob("*.whl"))), None)


def sources_in(wheel: Path) -> Sources:
    """Return the modules of a wheel, without tests."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: FileVersion(archive.read(name))
            for name in archive.namelist()
            if name.endswith(".py") and not is_test(name)
        }


def is_changed(before: Version, after: Version) -> bool:
    """Return True if the versions differ in more than the version number of the release."""
    if before is None or after is None:
        return before is not after
    number = re.compile(rb"^\s*_*version(_tuple)?_*\b.*=.*$", re.IGNORECASE | re.MULTILINE)
    return number.sub(b"", before.data) != number.sub(b"", after.data)


def differences(package: str, most: int, wheels: Path) -> Iterator[tuple[str, dict[str, tuple[Version, Version]]]]:
    """Yield each release except the oldest, with the old and the new version of each changed file."""
    known = sorted(place.name for place in (wheels / package).glob("*"))
    versions = sorted(known or versions_of(package, most), key=lambda text: [int(part) for part in text.split(".")])
    before: Sources | None = None
    for version in versions[-most:]:
        if (wheel := download(package, version, wheels)) is None:
            continue
        after = sources_in(wheel)
        if before is not None:
            paths = {*before, *after}
            yield (
                wheel.name,
                {
                    path: (before.get(path), after.get(path))
                    for path in paths
                    if is_changed(before.get(path), after.get(path))
                },
            )
        before = after


def main(arguments: list[str]) -> int:
    """Review the differences, and print the marks and the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wheels", type=Path, required=True, help="where the wheels are kept")
    wheels = parser.parse_args(arguments).wheels
    counted: Counter[str] = Counter()
    for package in (*PACKAGES, *FREQUENT):
        is_frequent = package in FREQUENT
        for name, changes in differences(package, FREQUENT_RELEASES if is_frequent else RELEASES, wheels):
            if not changes or (is_frequent and len(changes) > FEW_FILES):
                continue
            marks = review(changes)
            sys.stdout.writelines(f"{name}: {mark.detail}\n" for mark in marks)
            if len(changes) <= FEW_FILES:
                counted.update(few=1, marked_few=bool(marks))
            if not is_frequent:
                files = len({mark.file for mark in marks})
                counted.update(files=len(changes), marked_files=files, releases=1, marked=bool(marks))
    sys.stdout.write(f"\n{len(PACKAGES)} and {len(FREQUENT)} packages\n")
    for title, part, whole in (
        (f"changes of at most {FEW_FILES} files, all packages", "marked_few", "few"),
        (f"changed library files, {len(PACKAGES)} packages", "marked_files", "files"),
        (f"whole releases, {len(PACKAGES)} packages", "marked", "releases"),
    ):
        share = 100 * counted[part] / max(1, counted[whole])
        sys.stdout.write(f"| {title} | {counted[part]:,} of {counted[whole]:,} | {share:.1f} % |\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
