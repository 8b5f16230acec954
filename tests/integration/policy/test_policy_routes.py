"""Read-only and hidden files by every route: what is protected never changes in the patch, nor where it is scored."""

import pytest

from tests.fakes.attacks.policy import (
    SHELL,
    carries_nothing_protected,
    file_tools_refuse_every_spelling,
    file_tools_refuse_links,
    paths_of,
    program_and_debugger_write_in_vain,
)

pytestmark = pytest.mark.attack("protected-files")


@pytest.mark.parametrize("route", SHELL)
async def test_no_shell_command_carries_a_protected_change(open_environment, route):
    await carries_nothing_protected(await open_environment(), SHELL[route])


@pytest.mark.parametrize(
    "routes", [("plain writes", "renamed directory", "hard link", "modes"), ("deletion",)], ids=str
)
async def test_the_same_in_every_sandbox(open_environment, kind, routes):
    await carries_nothing_protected(await open_environment(kind), "\n".join(SHELL[route] for route in routes))


async def test_file_tools_refuse_every_spelling(open_environment, kind):
    await file_tools_refuse_every_spelling(await open_environment(kind))


async def test_file_tools_refuse_links_to_what_is_protected(open_environment, kind):
    await file_tools_refuse_links(await open_environment(kind))


@pytest.mark.parametrize("name", ["CHECKS/check.py", "Checks/check.py", "LOCKED_a.txt", ".DEBUGREADONLY"])
async def test_names_of_another_case_are_other_files(open_environment, name):
    environment = await open_environment()
    observation, *_ = await environment.step({"tool": "rewrite", "arguments": {"path": name, "new_code": "x"}})
    assert observation["ok"], observation["text"]
    assert paths_of(await environment.patch()) == [name]


async def test_the_program_and_the_debugger_write_in_vain(open_environment, kind):
    await program_and_debugger_write_in_vain(await open_environment(kind))
