import os
import shutil
import subprocess

import pytest
from click.testing import CliRunner

from dgym.cli.app import cli
from tests.support.command import DGYM


@pytest.fixture
def offered():
    def complete(line):
        """Return the completions of the last argument in ``line``."""
        words = line.split(" ")
        done = CliRunner().invoke(
            cli,
            prog_name="dgym",
            env={
                "_DGYM_COMPLETE": "bash_complete",
                "COMP_WORDS": line,
                "COMP_CWORD": str(len(words) - 1),
            },
        )
        assert done.exit_code in (0, 1), done.output
        return done.output.split()

    return complete


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dgym rep", ["plain,replay", "plain,report"]),
        ("dgym tools rew", ["plain,rewrite"]),
        ("dgym run --agent sol", ["plain,solution"]),
        ("dgym init --agent hum", ["plain,human"]),
        ("dgym run --bundled mini", ["plain,mini_nightmare"]),
        ("dgym run examples/ep", ["file,examples/ep"]),
        ("dgym validate -f x", ["file,x"]),
        ("dgym replay x", ["file,x"]),
        ("dgym run --results r", ["dir,r"]),
        ("dgym report r", ["dir,r"]),
        ("dgym run -p agent.maxS", ["plain,agent.maxSteps="]),
        ("dgym run -p set.sampl", ["plain,set.samples="]),
        ("dgym run -p agent.name=sol", ["plain,agent.name=solution"]),
        ("dgym run --sandbox bub", ["plain,bubblewrap"]),
        ("dgym completion z", ["plain,zsh"]),
        ("dgym nonsense x", []),
        ("dgym run --agent zzz", []),
    ],
)
def test_completions_of_command_lines(offered, line, expected):
    assert offered(line) == expected


@pytest.mark.parametrize(
    ("shell", "words"),
    [("bash", "complete -o nosort -F"), ("zsh", "#compdef dgym"), ("fish", "complete --no-files --command dgym")],
)
def test_scripts_for_each_shell(shell, words):
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert words in done.output
    assert f"_DGYM_COMPLETE={shell}_complete" in done.output


def test_another_shell_is_a_usage_error():
    assert CliRunner().invoke(cli, ["completion", "tcsh"]).exit_code == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_parses_the_script(shell, tmp_path):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(CliRunner().invoke(cli, ["completion", shell]).output)
    subprocess.run([program, "-n", str(script)], check=True, timeout=90)


def test_bash_completes_with_the_script(tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    ask = (
        "source <(dgym completion bash); COMP_WORDS=(dgym tools rew); COMP_CWORD=2; _dgym_completion dgym;"
        ' echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{DGYM.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", ask], env=environment, capture_output=True, text=True, timeout=90, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "rewrite"
