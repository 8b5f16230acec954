"""Tests of `dgym init` and `dgym check` with and without a terminal: questions, answers and Ctrl-C."""

import os
import subprocess
import time

import pexpect
import psutil
import pytest

from dgym.api import load
from dgym.sandbox.local import bubblewrap_problem, find_version
from tests.support.command import DGYM
from tests.support.required import absent
from tests.support.wheels import PYTEST, write_index, write_wheel

TIMEOUT_SECONDS = 90
QUESTION = r"The tests lack lacking. Add it to the requirements\? \[Y/n\]: "
TASK = """\
apiVersion: dgym.dev/v1alpha1
kind: DebugTask
metadata: {name: shop}
spec:
  source: {localPath: shop}
  environment: {python: "3.99"}
"""
UV = """#!/bin/sh
echo "$@" >>"$0.calls"
exit 1
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Environment variables for an index with pytest and ``lacking``, and for a cache."""
    directory = tmp_path_factory.mktemp("shared")
    variables = write_index(directory, PYTEST)
    write_wheel(directory, "lacking", "1.0", files={"lacking.py": "TOTAL = 5\n"})
    return {**variables, "XDG_CACHE_HOME": str(directory / "cache")}


@pytest.fixture
def environment(tmp_path, shared):
    if problem := bubblewrap_problem():
        absent("bubblewrap", f"bubblewrap does not work here: {problem}")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "test_shop.py").write_text("from lacking import TOTAL\n\n\ndef test_it():\n    assert TOTAL\n")
    (tmp_path / "bin").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    return {
        **kept,
        **shared,
        "HOME": str(tmp_path),
        "PYENV_ROOT": str(tmp_path),
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "TERM": "xterm",
    }


@pytest.fixture
def terminal(tmp_path, environment):
    children = []

    def start(*arguments):
        children.append(
            pexpect.spawn(
                str(DGYM),
                list(arguments),
                cwd=str(tmp_path),
                env=environment,
                encoding="utf-8",
                timeout=TIMEOUT_SECONDS,
                dimensions=(50, 400),
            )
        )
        return children[0]

    yield start
    for child in children:
        child.close(force=True)


def ended(child):
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus


def requirements(tmp_path):
    (episode,) = load(tmp_path / "shop.yaml")
    return [line.partition("==")[0] for line in episode.spec.task.environment.requirements]


def test_missing_requirements_are_added_after_yes(terminal, tmp_path):
    child = terminal("init", "shop")
    child.expect(QUESTION)
    child.sendline("maybe")
    child.expect("invalid input")
    child.expect(QUESTION)
    child.sendline("y")
    child.expect("added lacking")
    child.expect("shop: ")
    ended(child)
    assert "lacking" in requirements(tmp_path)


def test_requirements_are_not_added_after_no(terminal, tmp_path):
    child = terminal("init", "shop")
    child.expect(QUESTION)
    child.sendline("n")
    child.expect("ModuleNotFoundError: No module named 'lacking'")
    assert ended(child) == 1
    assert requirements(tmp_path) == []


def wait_until_asleep(pid):
    """Wait until the main thread of the process waits in a system call."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while psutil.Process(pid).status() != psutil.STATUS_SLEEPING:
        assert time.monotonic() < deadline
        os.sched_yield()


def test_ctrl_c_at_the_question_leaves_the_manifest_as_it_was_written(terminal, tmp_path):
    child = terminal("init", "shop")
    child.expect(QUESTION)
    # Python handles a signal that arrives just before the read only after the next line of input.
    wait_until_asleep(child.pid)
    child.sendcontrol("c")
    assert ended(child) == 130
    assert requirements(tmp_path) == []


def test_option_yes_answers_all_questions(terminal, tmp_path):
    child = terminal("init", "shop", "--yes")
    assert child.expect(["added lacking", r"\[Y/n\]"]) == 0
    ended(child)
    assert "lacking" in requirements(tmp_path)


def without_terminal(directory, environment, *options):
    return subprocess.run(
        [DGYM, "init", "shop", *options],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("check", [True, False])
def test_without_a_terminal_there_are_no_questions(tmp_path, environment, check):
    done = without_terminal(tmp_path, environment, *(["--check"] if check else []))
    assert done.returncode == int(check), done.stderr
    assert "[Y/n]" not in done.stdout + done.stderr
    assert ("No module named 'lacking'" in done.stdout) == check
    assert requirements(tmp_path) == []


def test_init_succeeds_if_all_tests_pass(tmp_path, environment):
    (tmp_path / "shop" / "test_shop.py").write_text("def test_it():\n    assert True\n")
    done = without_terminal(tmp_path, environment, "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "shop: fine\n  note: an empty patch resolves this task" in done.stdout
    assert "0 failToPass, 1 passToPass" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("check",), "y"),
        (("check",), "n"),
        (("check", "--yes"), None),
        (("check",), "\x03"),
        (("run", "--agent", "human"), "y"),
        (("run", "--agent", "human"), "n"),
        (("run", "--agent", "human"), "\x03"),
    ],
)
def test_a_missing_python_is_installed_only_after_yes(terminal, tmp_path, arguments, answer):
    (tmp_path / "shop.yaml").write_text(TASK)
    (tmp_path / "bin" / "uv").write_text(UV)
    (tmp_path / "bin" / "uv").chmod(0o755)
    child = terminal(*arguments, "shop.yaml")
    if answer is not None:
        child.expect(r"Python 3.99 was not found on this machine. Run 'uv python install 3.99'\? \[Y/n\]: ")
        child.send(answer if answer == "\x03" else f"{answer}\n")
    if answer == "\x03":
        assert ended(child) == 130
    else:
        child.expect("install it with 'uv python install 3.99'")
        child.expect("looked for python3.99, python3 and 'py -3.99' on PATH")
        assert ended(child) == 1
    calls = tmp_path / "bin" / "uv.calls"
    asked = calls.read_text().splitlines() if calls.exists() else []
    assert asked == (["python install 3.99"] if answer in ("y", None) else [])


def test_an_interpreter_of_the_launcher_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path))
    facts = '{"executable": "", "version": [3, 99, 1], "tag": "x", "prefixes": [], "base": ""}'
    (tmp_path / "other").write_text(f"#!/bin/sh\necho '{facts}'\n")
    (tmp_path / "py").write_text(f"#!/bin/sh\n[ $1 = -3.99 ] && echo {tmp_path}/other\n")
    for name in ("other", "py"):
        (tmp_path / name).chmod(0o755)
    assert find_version("3.99") == str(tmp_path / "other")
