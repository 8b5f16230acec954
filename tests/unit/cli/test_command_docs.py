import re
import shlex
from pathlib import Path

import click
import pytest

from dgym.cli.app import cli
from dgym.cli.migrate import KEYS, TOOLS

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("report.md", "migrating.md", "your-own-repository.md", "agents.md")


def commands():
    """Yield every dgym command in a console block of the pages, with its page."""
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
            for line in re.findall(r"^\$ (dgym .*)$", block, re.MULTILINE):
                yield page, re.split(r" [|>] ", line)[0].partition(" #")[0].strip()


@pytest.mark.parametrize(("page", "line"), list(commands()))
def test_commands_in_the_docs_are_understood(page, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, *arguments = shlex.split(line)[1:]
    for path in (argument for argument in arguments if not argument.startswith("-")):
        if path.endswith(".yaml"):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).touch()
        elif "/" in path:
            (tmp_path / path).mkdir(parents=True, exist_ok=True)
    parent = click.Context(cli, **cli.context_settings)  # a command caches the names of --help from its first context
    cli.get_command(parent, name).make_context(name, list(arguments), parent=parent)


def test_the_page_about_migration_names_every_key_and_tool():
    text = (DOCS / "migrating.md").read_text()
    grouped = ("env_kwargs.", "env.", "task_data.", "dataset.", "terminal.")
    keys = {key.rpartition(".")[2] if key.startswith(grouped) else key for key in KEYS}
    assert [key for key in sorted({*keys, *TOOLS} - {"patcher"}) if f"`{key}`" not in text] == []


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / page).read_text()):
            assert (DOCS / target).is_file(), f"{page}: {target}"


def test_every_option_of_a_report_is_in_its_page():
    text = (DOCS / "report.md").read_text()
    command = cli.get_command(click.Context(cli), "report")
    options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
    assert [option for option in options if option not in text] == []
