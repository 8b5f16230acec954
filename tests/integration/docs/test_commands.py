"""Tests of every command on the pages: the command and its flags exist, and its values are accepted.

Most commands need a cluster and are not run. The tests read the options of the programs, and Helm renders the values.
"""

import functools
import importlib
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from dgym.api import apply_overrides
from dgym.benchmarks import bundled, episode_set
from dgym.errors import ManifestError
from hack.cluster.cli import parser as cluster_parser
from tests.support.required import built

ROOT = Path(__file__).parents[3]
DOCS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))
PAGES = ("README.md", "CONTRIBUTING.md", "charts/dgym/README.md", *DOCS)
CONSOLE = re.compile(r"^```(?:console|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
VALUES = re.compile(r"^```yaml\n(# values\.yaml\n.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:dgym|dgym-operator|helm|kubectl|make|hack/[\w/]+|--set(?:-file)?) [^`\n]+)`")
NESTED = re.compile(r"\$\(([^()]+)\)")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
FLAG = re.compile(r"^\s+(-\w), (--[\w-]+)|^\s+(--[\w-]+)", re.MULTILINE)
PYTHON_PROGRAMS = {"dgym": "dgym.cli.app", "dgym-operator": "dgym_operator.__main__"}
SETS = ("--set", "--set-string", "--set-json")


class Shown(NamedTuple):
    """A command as a page shows it."""

    page: str
    words: tuple[str, ...]

    @property
    def program(self) -> str:
        """The name of the program, without the directory of the clone's virtual environment."""
        return self.words[0].removeprefix(".venv/bin/")


def shown():
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8")
        lines = [line.removeprefix("$ ") for block in CONSOLE.findall(text) for line in block.splitlines()]
        for line in [*lines, *INLINE.findall(text)]:
            for part in [line, *NESTED.findall(line)]:
                yield from (Shown(page, words) for words in simple_commands(NESTED.sub("", part)))


def simple_commands(line):
    """Yield the commands of a line, without assignments of variables and the syntax of the shell."""
    lexer = shlex.shlex(line.replace("`", "'"), posix=True, punctuation_chars=";|&<>")
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        tokens = list(lexer)
    except ValueError:
        return
    for token in [*tokens, ";"]:
        if set(token) <= set(";|&<>"):
            if words:
                yield tuple(words)
            words = []
        elif words or not (ASSIGNMENT.match(token) or token in ("do", "export")):
            words.append(token)


ALL = tuple(dict.fromkeys(shown()))


def of(*programs):
    found = [each for each in ALL if each.program in programs]
    assert found, programs
    return pytest.mark.parametrize("command", found, ids=lambda each: f"{each.page}:{shlex.join(each.words)}")


@of("dgym", "dgym-operator")
def test_flags_and_values_of_dgym_programs(command):
    group = importlib.import_module(PYTHON_PROGRAMS[command.program])
    program, words = group.main if command.program == "dgym-operator" else group.cli, list(command.words[1:])
    # Click caches the help option of a command with the names from the command's first context.
    context = click.Context(program, info_name=command.program, **program.context_settings)
    while isinstance(program, click.Group) and words and not words[0].startswith("-"):
        found = program.get_command(context, words.pop(0))
        assert found is not None, command
        program, context = found, click.Context(found, parent=context)
    options = parsed(program, context, words)
    for parameter in program.params:
        if isinstance(parameter.type, click.Choice) and options.get(parameter.name) not in (None, "…"):
            parameter.type_cast_value(context, options[parameter.name])
    check_episode_options(command)


def parsed(program, context, words):
    """The options by name. A sentence on a page may have an option without its value."""
    try:
        return program.make_parser(context).parse_args([*words])[0]
    except click.BadOptionUsage:
        return program.make_parser(context).parse_args([*words, "…"])[0]


def check_episode_options(command):
    pairs = dict(zip(command.words, command.words[1:], strict=False))
    if command.words[1:2] in (("submit",), ("run",)):
        changes = [after for word, after in zip(command.words, command.words[1:], strict=False) if word == "-p"]
        known = [change for change in changes if "…" not in change and not re.search(r"[A-Z]{3}", change)]
        apply_overrides(episode_set("mini_nightmare"), known)
    if "--bundled" in pairs and pairs["--bundled"] != "NAME":
        assert pairs["--bundled"] in bundled()


@of("make")
def test_targets_of_make(command):
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wanted = {word for word in command.words[1:] if "=" not in word}
    assert wanted <= targets


@pytest.mark.parametrize("command", [each for each in ALL if each.program.startswith("hack/")], ids=str)
def test_programs_of_the_clone(command):
    assert os.access(ROOT / command.program, os.X_OK)
    if command.program == "hack/cluster/cluster":
        cluster_parser().parse_args(command.words[1:])


def test_files_of_the_clone():
    words = {word for command in ALL for word in command.words if word.startswith(("examples/", "charts/", "tests/"))}
    words = {word for word in words if "::" not in word}  # test ids in the output of a command
    assert len(words) > 3
    assert [word for word in words if "…" not in word and not (ROOT / word).exists()] == []


@pytest.fixture(scope="session")
def built_program():
    """Return the path of a program that ``make binaries`` builds, by its name."""
    return lambda name: str(built(name))


@functools.cache
def output(*words):
    """Output of a program. The result is cached."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
    return done.stdout + done.stderr


def flags(text):
    return {flag for found in FLAG.findall(text) for flag in found if flag}


@of("kubectl", "helm")
def test_flags_of_kubectl_and_helm(command, built_program):
    path, words = built_program(command.program), [*command.words[1:]]
    asked = [path]
    while words and re.search(rf"^\s+{re.escape(words[0])} ", output(*asked, "--help"), re.MULTILINE):
        asked.append(words.pop(0))
        if "vailable Commands:" not in output(*asked, "--help"):
            break
    else:
        assert not words or words[0].startswith("-"), f"no such command: {command.words}"
    known = flags(output(*asked, "--help"))
    known |= flags(output(path, "options")) if command.program == "kubectl" else set()
    used = {word.partition("=")[0] for word in words if word.startswith("-") and word != "-"}
    assert used <= known


@pytest.mark.parametrize("command", [each for each in ALL if set(each.words) & set(SETS)], ids=str)
def test_values_that_are_set(command, built_program):
    given = [part for pair in zip(command.words, command.words[1:], strict=False) if pair[0] in SETS for part in pair]
    render(built_program("helm"), *given)


@pytest.mark.parametrize(
    ("page", "values"),
    [(page, text) for page in PAGES for text in VALUES.findall((ROOT / page).read_text("utf-8"))],
)
def test_values_in_files(page, values, built_program, tmp_path):
    (tmp_path / "values.yaml").write_text(values)
    render(built_program("helm"), "--values", str(tmp_path / "values.yaml"))


def render(helm, *arguments):
    """Render the chart, which refuses unknown values."""
    command = (helm, "template", "dgym", "charts/dgym", "--namespace", "dgym-system", *arguments)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "line",
    ["dgym submit --wat", "dgym get --output yml", "dgym submit x.yaml -p agent.maxStep=3", "dgym sumbit"],
)
def test_a_wrong_dgym_command_is_reported(line):
    with pytest.raises((click.ClickException, ManifestError, AssertionError)):
        test_flags_and_values_of_dgym_programs(Shown("", (*next(simple_commands(line)),)))


@pytest.mark.parametrize("line", ["kubectl wait --fro=x episode/y", "helm install --wiat", "kubectl rollout restrat x"])
def test_a_wrong_command_of_others_is_found(line, built_program):
    with pytest.raises(AssertionError):
        test_flags_of_kubectl_and_helm(Shown("", (*next(simple_commands(line)),)), built_program)
