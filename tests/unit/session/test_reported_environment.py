"""Tests of the report of a sandbox's interpreter and distributions."""

import platform
import subprocess
import sys
from importlib import metadata

from dgym.session._preparation import REPORT_PROGRAM, read_report


def report(**options):
    command = [sys.executable, "-B", "-"]
    done = subprocess.run(command, input=REPORT_PROGRAM, capture_output=True, check=True, **options)
    found = read_report(done.stdout)
    assert found is not None
    return found


def test_the_distributions_are_those_of_importlib_metadata(tmp_path):
    for directory, file, text in (
        (
            "Odd_Name-1.0.dist-info",
            "METADATA",
            'Metadata-Version: 2.1\nName: Odd.Name\nVersion: 1"\\\x01\n\nName: body\n',
        ),
        ("nameless-1.0.dist-info", "METADATA", "Version: 1\n"),
        ("empty-1.0.dist-info", "RECORD", ""),
        ("developed.egg-info", "PKG-INFO", "Name: developed\nVersion: 2\nName: second\n"),
        ("EGG-INFO", "PKG-INFO", "Name: egg\nVersion: 3\n"),
    ):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / file).write_text(text)
    (tmp_path / "flat.egg-info").write_text("Name: flat\nVersion: 4")
    found = report(env={"PYTHONPATH": str(tmp_path)})
    installed = {
        each.name.lower().replace("_", "-").replace(".", "-"): each.version for each in metadata.distributions()
    }
    made = {"odd-name": '1"\\', "developed": "2", "egg": "3", "flat": "4"}
    assert found.distributions == installed | made
    assert found.interpreter == platform.python_version()


def test_files_of_the_workspace_are_left_out(tmp_path):
    for name in ("io", "os", "sys", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "local.egg-info").write_text("Name: local\nVersion: 1\n")
    assert "local" not in report(cwd=tmp_path).distributions
