"""Builds the images and prints their names: ``python -m tests.e2e.cluster.miniature SANDBOX AGENT``.

``DGYM_E2E_ENGINE`` builds them. One image contains the last commit of the repository. For each row, another image
contains the row's base commit. Existing images are not built again.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.miniature import git, make_repository

HERE = Path(__file__).parent
CONDA = 'conda() { [ "$*" = "activate testbed" ] && export PATH=/opt/python/bin:$PATH; }\n'
PYTHON = '#!/bin/sh\nexec /opt/python/bin/python "$@"\n'
RUN_TESTS = ".venv/bin/python -W ignore -m pytest -rA -p no:cacheprovider r2e_tests\n"


def main(sandbox: str, agent: str) -> None:
    """Build the missing images and print all names."""
    with tempfile.TemporaryDirectory() as directory:
        context = Path(directory)
        commits = write_context(context)
        inputs = [image_id(sandbox), *(path.read_text() for path in sorted(HERE.iterdir()) if path.is_file()), *commits]
        tag = hashlib.sha256("".join(inputs).encode()).hexdigest()[:12]
        for number, commit in enumerate(("", *commits)):
            suffix = f"-{number}" if number else ""
            name = f"localhost/dgym-e2e/mini_1776_coins{suffix}:{tag}"
            if not image_id(name):
                build = f"NUMBER={number}", "--build-arg", f"COMMIT={commit}"
                chosen = ["--build-arg", *build] if commit else ["--target", "whole"]
                bases = ["--build-arg", f"SANDBOX={sandbox}", "--build-arg", f"AGENT={agent}"]
                engine("build", "--quiet", "--network", "none", *bases, *chosen, "--tag", name, directory)
            print(name)


def write_context(context: Path) -> list[str]:
    """Write all files that the Dockerfile copies. Returns the base commits of the rows."""
    shutil.copy(HERE / "Dockerfile", context)
    files, testbed = context / "files", context / "testbed"
    rows = make_repository(context)
    (context / "mini__coins").rename(testbed)
    pack_the_future(testbed)
    write(files / "opt/miniconda3/bin/activate", CONDA)
    write(testbed / ".venv/bin/python", PYTHON, 0o755)
    write(testbed / ".git/info/exclude", ".venv\n")
    write(files / "run_tests.sh", RUN_TESTS)
    commits = [row["base_commit"] for row in rows]
    for number, repaired in enumerate((*commits[1:], "HEAD"), start=1):
        write(context / f"r2e_tests/{number}/test_money.py", git(testbed, "show", f"{repaired}:tests/test_money.py"))
    return commits


def pack_the_future(repository: Path) -> None:
    """Add a remote branch at the last commit, and pack refs and objects."""
    git(repository, "remote", "add", "origin", "https://example.com/coins.git")
    git(repository, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(repository, "pack-refs", "--all")
    git(repository, "repack", "-adq")


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file and create its parent directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def image_id(name: str) -> str:
    """The image's id. Empty if the image does not exist."""
    return engine("image", "inspect", "--format", "{{.Id}}", name, check=False).strip()


def engine(*arguments: str, check: bool = True) -> str:
    """Run the engine and return its output."""
    command = [os.environ["DGYM_E2E_ENGINE"], *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if check and done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    main(*sys.argv[1:])
