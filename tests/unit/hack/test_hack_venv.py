"""Tests of the interpreter that ``hack/venv`` chooses."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# A fake interpreter without the modules that match {lacks}. It records calls with -m in the file `started`.
STUB = """#!/bin/sh
case "$1" in
--version) echo Python 3.11 ;;
-c) case "$2" in {lacks}) exit 1 ;; esac ;;
-m) echo "$0 $*" >>"$(dirname "$0")/started"; exit 7 ;;
esac
"""


@pytest.fixture
def venv(tmp_path):
    """Return a function that runs ``hack/venv`` with fake interpreters, given as name=PATTERN of missing modules."""

    def run(**interpreters):
        for name in ("bash", "dirname", "env", "id", "cat"):
            (tmp_path / name).symlink_to(shutil.which(name))
        for name, lacks in interpreters.items():
            stub = tmp_path / name
            stub.write_text(STUB.format(lacks=lacks))
            stub.chmod(0o755)
        command = ["hack/venv", str(tmp_path / "made"), "requirements/dev.txt"]
        environment = {"PATH": str(tmp_path), "HOME": os.environ["HOME"]}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90)
        started = tmp_path / "started"
        return done, started.read_text() if started.exists() else ""

    return run


def test_an_interpreter_without_ensurepip_is_passed_over(venv, tmp_path):
    _, started = venv(**{"python3": "*ensurepip*", "python3.12": "nothing"})
    assert started.startswith(f"{tmp_path}/python3.12 -m venv ")


def test_debians_package_is_named_when_only_ensurepip_is_missing(venv):
    done, started = venv(python3="*ensurepip*")
    assert done.returncode == 1
    assert started == ""
    assert "please install python3-venv" in done.stderr
    assert "apt install python3-venv" in done.stderr


def test_a_missing_interpreter_is_reported(venv):
    done, _ = venv()
    assert done.returncode == 1
    assert "no Python >= 3.11" in done.stderr
    assert "please install" not in done.stderr
