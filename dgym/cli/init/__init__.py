"""``dgym init``: a manifest for a repository, from a survey of its tests and requirements."""

import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dgym.api import load_documents, loads
from dgym.cli.check import check_and_show, tasks_of
from dgym.cli.init.survey import (
    Requirements,
    Survey,
    allows,
    protected_patterns,
    read_requirements,
    read_text,
    survey,
    test_folders,
)
from dgym.cli.manifests import local_path, resource_name
from dgym.cli.output import comment, echo, write_text
from dgym.documents import dump
from dgym.terminal import printable_line

_PYTEST = "python -m pytest -q"


class Entrypoint(msgspec.Struct, frozen=True):
    """The command that runs the tests, and the reason for it; ``certain`` is false for a mere default."""

    command: str
    why: str
    certain: bool = True


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the manifest. Patterns are empty where the repository has a policy file."""

    found: Survey
    requirements: Requirements
    entrypoint: Entrypoint
    ignore: tuple[str, ...]
    read_only: tuple[str, ...]
    agent: str


def propose(found: Survey, requirements: Requirements, *, agent: str) -> Proposal:
    """The likely manifest of the surveyed repository."""
    hidden = (*(f"{path}/" for path in found.bulky), *found.secrets)
    return Proposal(
        found=found,
        requirements=requirements,
        entrypoint=find_entrypoint(found),
        ignore=() if ".debugignore" in found.policy_files else hidden,
        read_only=() if ".debugreadonly" in found.policy_files else tuple(protected_patterns(found)),
        agent=agent,
    )


def find_entrypoint(found: Survey) -> Entrypoint:
    """The command that runs the tests."""
    settings = found.pytest
    if settings is not None and settings.testpaths:
        return Entrypoint(_PYTEST, f"{settings.file} names the tests: {', '.join(settings.testpaths)}")
    if found.django and settings is None:
        return Entrypoint("python manage.py test", "manage.py is Django's; its exit status is the score")
    if found.tests:
        folders = test_folders(found)
        if settings is None and len(folders) == 1 and all(path.startswith(f"{folders[0]}/") for path in found.tests):
            return Entrypoint(f"{_PYTEST} {shlex.quote(folders[0])}", f"all tests are in {folders[0]}")
        return Entrypoint(_PYTEST, f"pytest finds them by their names, such as {found.tests[0]}")
    if found.other_tests:
        first = found.other_tests[0]
        text = read_text(found.root, first)
        lines = (line.strip() for line in text.splitlines())
        if "TestCase" in text or any(line.startswith(("def test", "async def test")) for line in lines):
            return Entrypoint(f"{_PYTEST} {shlex.quote(first)}", f"{first} holds the tests")
        return Entrypoint(f"python {shlex.quote(first)}", f"{first} is a program; its exit status is the score")
    return Entrypoint(
        _PYTEST, "no tests were found; write the command that fails while the bug is there", certain=False
    )


def manifest_text(proposal: Proposal, *, local_path: str) -> str:
    """The whole file."""
    return "\n".join(_lines(proposal, local_path)) + "\n"


def _lines(proposal: Proposal, path: str) -> Iterator[str]:
    found, entrypoint = proposal.found, proposal.entrypoint
    yield "# One debugging episode. Check it with dgym validate, run it with dgym run."
    yield "apiVersion: dgym.dev/v1alpha1"
    yield "kind: Episode"
    yield "metadata:"
    yield f"  name: {_scalar(resource_name(found.root.name))}"
    yield "spec:"
    yield "  task:"
    yield "    # The repository, relative to this file. Episodes work on copies, without .git; it is never changed."
    yield f"    source: {_scalar({'localPath': path})}"
    yield ""
    yield "    # The agent's instructions. Say what goes wrong rather than where."
    yield "    instructions: The tests fail. Find the cause and repair it."
    yield ""
    yield f"    # Runs the tests ({comment(entrypoint.why)})."
    yield f"    entrypoint: {_scalar(entrypoint.command)}"
    yield "    entrypointTimeoutSeconds: 300"
    yield "    # What pdb starts, where that is not the tests:"
    yield "    # debugEntrypoint: python main.py"
    yield ""
    yield from _environment(proposal)
    yield from _policy(proposal)
    yield "    # What counts. Without names every test must pass; with names only these:"
    yield "    # scoring:"
    yield '    #   failToPass: ["tests/test_sum.py::test_empty"]'
    yield '    #   passToPass: ["tests/test_sum.py::test_one"]'
    yield ""
    yield "  # The agent: human is you at the keyboard, debug_agent asks a model; dgym run --agent NAME takes another."
    yield "  agent:"
    yield f"    name: {_scalar(proposal.agent)}"
    yield "    # model: the name of one in llm.yaml, which dgym init-llm-config makes"
    yield "    maxSteps: 50"
    yield "    # maxRewrites: 10"
    yield ""
    yield "  # The agent's own tools, unless named here; dgym tools lists what there is."
    yield "  # tools: [listdir, view, grep, eval, pdb, rewrite, submit]"
    yield "  activeDeadlineSeconds: 3600"


def _environment(proposal: Proposal) -> Iterator[str]:
    requirements, found = proposal.requirements, proposal.found
    origin = f", from {', '.join(requirements.files)}" if requirements.lines else "; none were found"
    yield f"    # Installed beforehand, beside pytest, into an environment that later runs share{comment(origin)}."
    yield "    # dgym run --python PATH names an interpreter or a virtual environment that has them instead."
    for left_out in requirements.left_out:
        yield f"    # Left out: {comment(left_out)}"
    yield from _list("requirements", requirements.lines)
    if found.source_layout and not (found.pytest is not None and found.pytest.pythonpath):
        yield "    # Modules are in src, and the repository itself is not installed."
        yield "    env:"
        yield "      - {name: PYTHONPATH, value: src}"
    yield "    # Once, before the agent begins, without network, such as compiling an extension:"
    yield '    # setupCommands: ["python setup.py build_ext --inplace"]'
    yield ""


def _policy(proposal: Proposal) -> Iterator[str]:
    files = proposal.found.policy_files
    if ".debugignore" in files:
        yield "    # What the tools do not show is in the repository's .debugignore."
    else:
        yield "    # What the file tools do not show, as in .gitignore. It is copied all the same: keep secrets out."
        yield from _list("ignorePatterns", proposal.ignore)
    if ".debugreadonly" in files:
        yield "    # What the agent may not change is in the repository's .debugreadonly."
    else:
        yield "    # What the agent sees and may not change."
        yield from _list("readOnlyPatterns", proposal.read_only)
    yield ""


def _list(name: str, items: Iterable[str]) -> Iterator[str]:
    lines = [f"      - {_scalar(item)}" for item in items]
    yield f"    {name}:{'' if lines else ' []'}"
    yield from lines


def _scalar(value: Any) -> str:
    return dump(value, flow=True).rstrip("\n")


def write_manifest(
    directory: str, output: str | None, *, agent: str, policy_files: bool, force: bool, check: bool
) -> None:
    """Survey the repository, write or print its manifest, and with ``check`` run its tests."""
    root = Path(directory).resolve()
    target = None if output == "-" else Path(output).absolute() if output else _default_target(root)
    found = survey(root)
    requirements = read_requirements(root)
    proposal = propose(found, requirements, agent=agent)
    if target is None:
        echo(_checked_text(proposal, target), nl=False)
        return
    if policy_files:
        _write_policy_files(proposal, force=force)
        proposal = propose(survey(root), requirements, agent=agent)
    write_text(target, _checked_text(proposal, target), force=force)
    echo(f"wrote {target}")
    _report(proposal, target)
    if check:
        check_and_show(tasks_of(load_documents(target, allow_local_paths=[root])))


def _default_target(root: Path) -> Path:
    here = Path.cwd()
    return (root.parent if here.is_relative_to(root) else here) / f"{resource_name(root.name)}.yaml"


def _checked_text(proposal: Proposal, target: Path | None) -> str:
    """The manifest, checked: names in the repository must not make it invalid."""
    text = manifest_text(proposal, local_path=local_path(proposal.found.root, target))
    loads(text, source=str(target or "the manifest"))
    return text


def _write_policy_files(proposal: Proposal, *, force: bool) -> None:
    root = proposal.found.root
    for name, patterns in ((".debugignore", proposal.ignore), (".debugreadonly", proposal.read_only)):
        if patterns:
            write_text(root / name, "".join(f"{pattern}\n" for pattern in patterns), force=force)
            echo(f"wrote {root / name}")


def _report(proposal: Proposal, target: Path) -> None:
    """Print the findings, the warnings and the next commands."""
    found, requirements = proposal.found, proposal.requirements
    echo(printable_line(f"tests: {proposal.entrypoint.command} ({proposal.entrypoint.why})"))
    declared = f"{len(requirements.lines)} from {', '.join(requirements.files)}" if requirements.files else "none found"
    echo(printable_line(f"requirements: {declared}"))
    for warning in _warnings(proposal, target):
        echo(printable_line(f"Warning: {warning}"), err=True)
    results = f" --results {_quoted(found.root.parent / 'results')}" if Path.cwd().is_relative_to(found.root) else ""
    manifest = _quoted(target)
    outside = "" if found.root.is_relative_to(target.parent) else f" --allow-local-path {_quoted(found.root)}"
    echo(f"\nNext:\n  dgym check {manifest}{outside}\n  dgym run {manifest}{outside}{results}")


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _warnings(proposal: Proposal, target: Path) -> list[str]:
    found = proposal.found
    warnings = []
    if not found.python_files:
        warnings.append(f"there is no Python file in {found.root}")
    if not proposal.entrypoint.certain:
        warnings.append(f"{proposal.entrypoint.why}: spec.task.entrypoint")
    warnings += [f"left out: {text}" for text in proposal.requirements.left_out]
    warnings += [f"{path} is copied for each episode; keep it elsewhere to start faster" for path in found.bulky]
    warnings += [f"{path} goes into the sandbox, where programs can read it" for path in found.secrets]
    if target.is_relative_to(found.root):
        warnings.append(f"{target.name} lies in the repository, where the agent can read it")
    python = proposal.requirements.python
    running = sys.version_info[:2]
    if not allows(python, running):
        warnings.append(
            f"the repository asks for Python {python}, and dgym runs under {running[0]}.{running[1]}; make a virtual"
            " environment of another Python with pytest and the requirements, and name it: --python PATH"
        )
    return warnings
