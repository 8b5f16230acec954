"""Tests of read-only and hidden files: no route changes a protected file in the patch or in the verifier."""

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

# Each group of routes runs in one environment, because no route undoes the effects of the routes before it.
# ``make test-all`` also runs each route alone.
TOGETHER = (
    (
        "plain writes",
        "policy files",
        "new files",
        "symbolic link to a file",
        "hard link",
        "dots",
        "absolute path",
        "sparse and special files",
        "modes",
    ),
    (
        "symbolic link in the place of a file",
        "directory in the place of a file",
        "symbolic link in the place of a directory",
        "mounts",
    ),
    ("a program", "a program through a directory's descriptor", "renamed directory", "renamed ancestor"),
    ("deletion", "file in the place of a directory"),
)


@pytest.mark.parametrize("routes", TOGETHER, ids=range(len(TOGETHER)))
async def test_protected_changes_by_all_shell_commands_together_are_not_in_the_patch(open_environment, routes):
    await carries_nothing_protected(await open_environment(), "\n".join(SHELL[route] for route in routes))


@pytest.mark.thorough
@pytest.mark.parametrize("route", SHELL)
async def test_a_protected_change_by_a_shell_command_is_not_in_the_patch(open_environment, route):
    await carries_nothing_protected(await open_environment(), SHELL[route])


@pytest.mark.thorough
@pytest.mark.parametrize("routes", TOGETHER, ids=range(len(TOGETHER)))
async def test_protected_changes_without_isolation_are_not_in_the_patch(open_environment, routes):
    await carries_nothing_protected(await open_environment("none"), "\n".join(SHELL[route] for route in routes))


async def test_file_tools_refuse_every_spelling(open_environment, kind):
    await file_tools_refuse_every_spelling(await open_environment(kind))


async def test_file_tools_refuse_links_to_what_is_protected(open_environment, kind):
    await file_tools_refuse_links(await open_environment(kind))


async def test_names_of_another_case_are_other_files(open_environment):
    environment = await open_environment()
    names = [".DEBUGREADONLY", "CHECKS/check.py", "Checks/check.py", "LOCKED_a.txt"]
    for name in names:
        observation, *_ = await environment.step({"tool": "rewrite", "arguments": {"path": name, "new_code": "x"}})
        assert observation["ok"], observation["text"]
    assert paths_of(await environment.patch()) == names


async def test_protected_changes_by_program_and_debugger_are_not_in_the_patch(open_environment, kind):
    await program_and_debugger_write_in_vain(await open_environment(kind))
