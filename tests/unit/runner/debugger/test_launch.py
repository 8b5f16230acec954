"""Tests of entrypoints that can be debugged, and of entrypoints that are refused."""

import os
import shlex
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.runner.launch import LaunchRefused, parse_entrypoint


@pytest.fixture
def place(tmp_path):
    """A directory with programs on PATH and a workspace."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("python", "python3.9"):
        (programs / name).symlink_to(sys.executable)
    return tmp_path


def script(place, name, *lines):
    path = place / "bin" / name
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return str(path)


def parse(place, text):
    return parse_entrypoint(text, {"PATH": str(place / "bin")}, str(place))


def test_a_script_with_flags_and_arguments(place):
    launch = parse(place, "MODE=fast  X='a b' python -uB -W error -X dev app.py --name 'two words' -v")
    assert launch.python == str(place / "bin" / "python")
    assert launch.env == {"MODE": "fast", "X": "a b"}
    assert launch.flags == ["-u", "-B", "-W", "error", "-X", "dev"]
    assert (launch.kind, launch.target, launch.argv) == ("script", "app.py", ["--name", "two words", "-v"])
    assert not launch.is_pytest


@pytest.mark.parametrize(
    "text", ["python -m pytest -q", "python -mpytest -q", "python3.9 -um pytest -q", "env A=1 python -m pytest -q"]
)
def test_a_module(place, text):
    launch = parse(place, text)
    assert (launch.kind, launch.target, launch.argv, launch.is_pytest) == ("module", "pytest", ["-q"], True)


def test_a_console_script_by_its_first_line(place):
    for first in (f"#!{place}/bin/python", "#!/usr/bin/env python", "#!/usr/bin/env -S python"):
        path = script(place, "pytest", first, "import pytest")
        launch = parse(place, "pytest -x tests/test_a.py::test_b[1-2]")
        assert launch.python == str(place / "bin" / "python")
        assert (launch.kind, launch.target, launch.is_pytest) == ("script", path, True)
        assert launch.argv == ["-x", "tests/test_a.py::test_b[1-2]"]


def test_a_console_script_of_an_installer_with_a_long_path(place):
    script(place, "tool", "#!/bin/sh", f'\'\'\'exec\' "{place}/bin/python" "$0" "$@"', "' '''", "import tool")
    assert parse(place, "tool run").python == str(place / "bin" / "python")


def test_an_interpreter_by_its_path(place):
    assert parse(place, "bin/python app.py").python == str(place / "bin" / "python")
    assert parse(place, f"{place}/bin/python app.py").python == str(place / "bin" / "python")


def test_patterns_are_expanded_as_a_shell_would(place):
    for name in ("test_b.py", "test_a.py"):
        (place / name).write_text("")
    assert parse(place, "python -m pytest test_*.py 'test_*.py' none*").argv == [
        "test_a.py",
        "test_b.py",
        "test_*.py",
        "none*",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no program"),
        ("A=1", "names no program"),
        ("make test", "not found"),
        ("python", "no script"),
        ("python -u", "no script"),
        ("python -c 'print(1)'", "-c"),
        ("python -i app.py", "-i"),
        ("python -", "not supported"),
        ("python --version", "not supported"),
        ("python -m", "needs a value"),
        ("python app.py && echo done", "needs a shell (&)"),
        ("python app.py | tee log", "needs a shell (|)"),
        ("python app.py > log", "needs a shell (>)"),
        ("python $SCRIPT", "needs a shell ($ expansion)"),
        ('python "$SCRIPT"', "needs a shell ($ expansion)"),
        ("python `which x`", "needs a shell (command substitution)"),
        ("python 'app.py", "unclosed quote"),
        ("python a.py\npython b.py", "second line"),
        ("shell-tool", "not a Python program"),
        ("lost-tool", "its interpreter"),
    ],
)
def test_everything_else_is_refused_with_advice(place, text, why):
    script(place, "shell-tool", "#!/bin/sh", "echo")
    script(place, "lost-tool", "#!/nowhere/python3", "x")
    with pytest.raises(LaunchRefused) as refused:
        parse(place, text)
    assert why in str(refused.value)
    assert "set debugEntrypoint" in str(refused.value)


@given(st.lists(st.text(min_size=1).filter(lambda text: "\0" not in text and "\n" not in text), max_size=5))
def test_quoted_arguments_arrive_as_they_are(arguments):
    text = " ".join(["python", "app.py", *map(shlex.quote, arguments)])
    launch = parse_entrypoint(text.strip(), {"PATH": os.path.dirname(sys.executable)}, "/")  # noqa: PTH120
    assert launch.argv == arguments


@given(st.text())
def test_any_text_is_understood_or_refused(text):
    try:
        launch = parse_entrypoint(text, {"PATH": "/nowhere"}, "/")
    except LaunchRefused as refused:
        assert "debugEntrypoint" in str(refused)  # noqa: PT017
    else:
        assert launch.python
