import os
import subprocess

import pexpect
import pytest

from tests.support.bare_python import bare_python
from tests.support.command import DGYM

MANIFEST = """
apiVersion: dgym.dev/v1alpha1
kind: Episode
metadata: {name: by-hand}
spec:
  task:
    instructions: greet() greets nobody.
    source: {localPath: repository}
    entrypoint: python test_greeting.py
  agent: {name: human}
"""
TIMEOUT_SECONDS = 90


@pytest.fixture
def folder(tmp_path):
    """A buggy repository, with a manifest of ten lines beside it."""
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "greeting.py").write_text('def greet(name):\n    return f"Hello, {nam}"\n')
    (repository / "test_greeting.py").write_text(
        'from greeting import greet\n\nassert greet("Ada") == "Hello, Ada"\nprint("it greets")\n'
    )
    (tmp_path / "episode.yaml").write_text(MANIFEST)
    return tmp_path


def command(*more):
    return ["run", "episode.yaml", "--sandbox", "none", "--python", bare_python(), *more]


@pytest.fixture
def terminal(folder):
    environment = {**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": str(folder / "state")}
    child = pexpect.spawn(
        str(DGYM),
        command(),
        cwd=str(folder),
        env=environment,
        encoding="utf-8",
        timeout=TIMEOUT_SECONDS,
        dimensions=(50, 200),
    )
    yield child
    child.close(force=True)


def test_a_person_at_a_terminal_repairs_a_bug(folder, terminal):
    terminal.expect("greets nobody")
    terminal.expect("dgym>")
    terminal.sendline("help pdb")
    terminal.expect("command")
    terminal.expect("dgym>")
    terminal.sendline("viwe greeting.py")
    terminal.expect("view")
    terminal.expect("dgym>")
    terminal.send("vi\tgreet\t")
    terminal.expect("view greeting.py")
    terminal.sendline("")
    terminal.expect("nam}")
    terminal.expect("dgym>")
    terminal.sendline("rewrite greeting.py 2:2 <c>")
    terminal.expect("[.]>")
    terminal.sendline('    return f"Hello, {name}"</c>')
    terminal.expect("dgym>")
    terminal.sendline("eval")
    terminal.expect("it greets")
    terminal.expect("dgym>")
    terminal.sendline("submit")
    terminal.expect("Resolved: 1 of 1")
    terminal.expect("1 episode: 1 resolved")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    assert "submit" in (folder / "state" / "dgym" / "history").read_text()


def test_ctrl_c_drops_the_line_and_ctrl_d_cancels_the_episode(folder, terminal):
    terminal.expect("dgym>")
    terminal.send("rewrite everything")
    terminal.expect("everything")
    terminal.sendcontrol("c")
    terminal.sendline("help")
    terminal.expect("end the episode")
    terminal.expect("dgym>")  # of the next prompt: between two prompts, Ctrl-D has no effect
    terminal.sendcontrol("d")
    terminal.expect("Cancelled")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


def piped(folder, text):
    return subprocess.run(
        [DGYM, *command()], cwd=folder, input=text, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )


def test_a_script_on_a_pipe_repairs_a_bug(folder):
    done = piped(folder, 'help\nrewrite greeting.py 2:2 <c>\n    return f"Hello, {name}"</c>\neval\n\nsubmit\n')
    assert done.returncode == 0, done.stderr
    assert "dgym> eval" in done.stdout
    assert "Resolved: 1 of 1 after 3 steps." in done.stdout


@pytest.mark.parametrize("text", ["", "quit\n", "view greeting.py", "rewrite greeting.py 2:2 <c>\n  never closed\n"])
def test_the_end_of_the_input_cancels_the_episode(folder, text):
    done = piped(folder, text)
    assert done.returncode == 0, done.stderr
    assert "Cancelled" in done.stdout
    assert (folder / "results").is_dir()


def test_terminal_escapes_of_programs_are_printed_as_text(folder):
    done = piped(folder, "bash printf '\\033[2Jwiped\\007' | tee odd.txt\nview odd.txt\nquit\n")
    assert "\nwiped\\x07" in done.stdout
    assert "\\x1b[2Jwiped\\x07" in done.stdout
    assert "\x1b" not in done.stdout
