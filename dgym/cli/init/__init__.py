"""``dgym init``: a manifest for a repository, from a survey of its tests and requirements."""

import asyncio
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from dgym.api import load_documents, loads
from dgym.cli.check import check_all, show_assessments, tasks_of
from dgym.cli.init.dependencies import (
    LIMIT,
    Requirements,
    Source,
    allows,
    distribution_of,
    read_requirements,
)
from dgym.cli.init.survey import (
    Survey,
    protected_patterns,
    read_text,
    survey,
    test_folders,
)
from dgym.cli.lock import requirement_lines
from dgym.cli.manifests import local_path, resource_name
from dgym.cli.output import FAILED, comment, echo, write_text
from dgym.documents import dump
from dgym.env import Opening
from dgym.errors import SetupFailed
from dgym.sandbox.local import Pinned, known_pins, pin_requirements, requirement_name
from dgym.session.verification import ALREADY_PASSES, Assessment, Lack
from dgym.terminal import printable_line

_PYTEST = "python -m pytest -q"
_TEST_FILES = 10
"""Files of tests with unusual names in the entrypoint, at most."""
_ROUNDS = 3
_PROJECTS = 10
"""Packages of a larger repository that are named."""
_NEWEST, _OLDEST = 14, 8
_REBUILD = "python -m pip install -q --no-deps --no-build-isolation --use-pep517 -e ."


class Entrypoint(msgspec.Struct, frozen=True):
    """The command that runs the tests, and the reason for it; ``certain`` is false for a mere default."""

    command: str
    why: str
    certain: bool = True


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the manifest. Patterns are empty where the repository has a policy file."""

    found: Survey
    requirements: Requirements
    pinned: Pinned
    python: str | None
    entrypoint: Entrypoint
    ignore: tuple[str, ...]
    read_only: tuple[str, ...]
    agent: str


def propose(found: Survey, requirements: Requirements, *, agent: str, pinned: Pinned | None = None) -> Proposal:
    """The likely manifest of the surveyed repository; without ``pinned`` the requirements are as they were found."""
    hidden = (*(f"{path}/" for path in found.bulky), *found.secrets)
    return Proposal(
        found=found,
        requirements=requirements,
        pinned=pinned or Pinned(lines=requirements.lines),
        python=other_python(requirements.python),
        entrypoint=find_entrypoint(found, requirements.pytest_arguments),
        ignore=() if ".debugignore" in found.policy_files else hidden,
        read_only=() if ".debugreadonly" in found.policy_files else tuple(protected_patterns(found)),
        agent=agent,
    )


def other_python(specifier: str) -> str | None:
    """The newest Python that ``specifier`` allows, where it is not the one that runs dgym."""
    if allows(specifier, sys.version_info[:2]):
        return None
    return next((f"3.{minor}" for minor in range(_NEWEST, _OLDEST - 1, -1) if allows(specifier, (3, minor))), None)


def find_entrypoint(found: Survey, doctests: Sequence[str] = ()) -> Entrypoint:
    """The command that runs the tests; ``doctests`` are the arguments by which the repository runs doctests."""
    settings = found.pytest
    options = [shlex.quote(word) for word in doctests if word.startswith("--")]
    pytest = " ".join([_PYTEST, *options])
    paths = [word for word in doctests if not word.startswith("--")]
    if paths:
        return Entrypoint(" ".join([pytest, *map(shlex.quote, paths)]), "the repository runs these with doctests")
    if settings is not None and settings.testpaths:
        return Entrypoint(pytest, f"{settings.file} names the tests: {', '.join(settings.testpaths)}")
    if found.django and settings is None:
        return Entrypoint("python manage.py test", "manage.py is Django's; its exit status is the score")
    if found.tests:
        folders = test_folders(found)
        if (
            settings is None
            and not options
            and len(folders) == 1
            and all(path.startswith(f"{folders[0]}/") for path in found.tests)
        ):
            return Entrypoint(f"{pytest} {shlex.quote(folders[0])}", f"all tests are in {folders[0]}")
        return Entrypoint(pytest, f"pytest finds them by their names, such as {found.tests[0]}")
    holding = [path for path in found.other_tests if _holds_tests(found.root, path)]
    if holding:
        named = " ".join(map(shlex.quote, holding[:_TEST_FILES]))
        return Entrypoint(f"{pytest} {named}", f"{holding[0]} holds tests")
    if found.other_tests:
        first = found.other_tests[0]
        return Entrypoint(f"python {shlex.quote(first)}", f"{first} is a program; its exit status is the score")
    return Entrypoint(
        pytest, "no tests were found; write the command that fails while the bug is there", certain=bool(options)
    )


def _holds_tests(root: Path, name: str) -> bool:
    text = read_text(root, name)
    lines = (line.strip() for line in text.splitlines())
    return "TestCase" in text or any(line.startswith(("def test", "async def test")) for line in lines)


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
    lines = proposal.pinned.lines[:LIMIT]
    origin = f", from {', '.join(requirements.files)}" if lines else "; no requirements were found"
    yield f"    # Made beforehand and shared by later runs{comment(origin)}."
    yield "    # dgym run --python PATH names an interpreter or a virtual environment instead."
    for text in left_out(proposal):
        yield f"    # Left out: {comment(text)}"
    yield "    environment:"
    if proposal.pinned.hashes:
        yield "      # The versions and the hashes of their wheels, for Linux and macOS, are those of this Python."
    if proposal.python is not None or proposal.pinned.hashes:
        yield f"      python: {_scalar(proposal.python or f'{sys.version_info[0]}.{sys.version_info[1]}')}"
    if found.builds:
        yield "      # The repository itself is installed, as by pip install -e."
        yield "      install: editable"
    yield from (f"  {line}" for line in _list("requirements", lines))
    if not found.builds and found.source_layout and not (found.pytest is not None and found.pytest.pythonpath):
        yield "    # Modules are in src, and the repository has no build system that could install it."
        yield "    env:"
        yield "      - {name: PYTHONPATH, value: src}"
    if requirements.extension and found.builds:
        yield f"    # {comment(requirements.extension)} declares a compiled extension, which is built before the tests."
        yield f"    buildCommands: [{_scalar(_REBUILD)}]"
    yield ""


def left_out(proposal: Proposal) -> list[str]:
    """What the environment lacks of the repository's requirements, with the reasons."""
    dropped = [f"{line}: {why}" for line, why in proposal.pinned.left_out]
    return [*proposal.requirements.left_out, *dropped]


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
    items = list(items)
    yield f"    {name}:{'' if items else ' []'}"
    yield from (f"    {line}" for line in requirement_lines(items))


def _scalar(value: Any) -> str:
    return dump(value, flow=True).rstrip("\n")


def write_manifest(
    directory: str, output: str | None, *, agent: str, policy_files: bool, force: bool, check: bool, yes: bool
) -> None:
    """Survey the repository, write or print its manifest, and with ``check`` run its tests and add what they lack."""
    root = Path(directory).resolve()
    target = None if output == "-" else Path(output).absolute() if output else _default_target(root)
    found = survey(root)
    requirements = read_requirements(root, found)
    proposal = propose(found, requirements, agent=agent, pinned=pin(requirements))
    if target is None:
        echo(_checked_text(proposal, target), nl=False)
        return
    if policy_files:
        _write_policy_files(proposal, force=force)
        proposal = propose(survey(root), requirements, agent=agent, pinned=proposal.pinned)
    write_text(target, _checked_text(proposal, target), force=force)
    echo(f"wrote {target}")
    if check:
        problems = _check_and_complete(proposal, target, yes=yes)
        if problems:
            sys.exit(FAILED)
    else:
        _report(proposal, target)


def pin(requirements: Requirements, *, known: bool = False) -> Pinned | None:
    """Exact versions, with ``known`` those found before; None, with a warning, where they cannot be found."""
    lists = [source.lines for source in requirements.sources]
    if not lists:
        return None
    names = {requirement_name(line) for lines in lists for line in lines}
    python = other_python(requirements.python)
    try:
        resolve = known_pins if known else pin_requirements
        return asyncio.run(resolve([*lists, *([] if "pytest" in names else [["pytest"]])], python_version=python))
    except SetupFailed as failure:
        later = "the requirements have no exact versions; dgym lock MANIFEST writes them later"
        echo(printable_line(f"Warning: {failure}; {later}"), err=True)
        return None


def _check_and_complete(proposal: Proposal, target: Path, *, yes: bool) -> bool:
    """Run the tests, add requirements that they lack, and print what is left; returns whether there are problems.

    Tests that all pass are a note: the manifest is right, and a bug may still be put into the repository.
    """
    root, requirements = proposal.found.root, proposal.requirements
    for _ in range(_ROUNDS):
        assessments = check_all(tasks_of(load_documents(target, allow_local_paths=[root])), Opening(), 1, yes=yes)
        lacking = missing_requirements(assessments[0].lacks, requirements, proposal.found.names)
        question = f"The tests lack {', '.join(lacking)}. Add it to the requirements?"
        if not lacking or not (yes or (sys.stdin.isatty() and click.confirm(question, default=True))):
            break
        source = Source(file="what the tests lacked", lines=tuple(lacking))
        requirements = msgspec.structs.replace(requirements, sources=(*requirements.sources, source))
        pinned = pin(requirements)
        if pinned is not None and pinned.lines == proposal.pinned.lines:
            break
        proposal = propose(proposal.found, requirements, agent=proposal.agent, pinned=pinned)
        write_text(target, _checked_text(proposal, target), force=True)
        echo(printable_line(f"added {', '.join(lacking)}"))
    _report(proposal, target)
    assessments = [_with_pass_as_note(assessment) for assessment in assessments]
    show_assessments(assessments, lists=False)
    return any(assessment.problems for assessment in assessments)


def _with_pass_as_note(found: Assessment) -> Assessment:
    problems = tuple(problem for problem in found.problems if problem != ALREADY_PASSES)
    passes = (ALREADY_PASSES,) if len(problems) < len(found.problems) else ()
    return msgspec.structs.replace(found, problems=problems, notes=(*passes, *found.notes))


def missing_requirements(lacks: Sequence[Lack], requirements: Requirements, own: frozenset[str]) -> list[str]:
    """The distributions whose absence explains the ``lacks``, if their names are known.

    A distribution of the index is not proposed for a module of the repository (``own``), such as another project of it.
    """
    known = {requirement_name(line) for line in requirements.lines} | {requirements.own_name}
    outside = [lack for lack in lacks if lack.kind != "module" or lack.name not in own]
    names = [name for lack in outside for name in [distribution_of(lack.kind, lack.name)] if name]
    return [name for name in dict.fromkeys(names) if requirement_name(name) not in known]


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
    declared += f", with what they need {len(proposal.pinned.lines)} exact versions" if proposal.pinned.lines else ""
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
    if found.projects and not found.builds:
        shown = ", ".join(found.projects[:_PROJECTS]) + (", …" if len(found.projects) > _PROJECTS else "")
        warnings.append(
            f"{found.root} has no build system, and these directories have: {shown}; nothing of them is installed. "
            f"Write a manifest for one: dgym init {_quoted(found.root / found.projects[0])}"
        )
    if not proposal.entrypoint.certain:
        warnings.append(f"{proposal.entrypoint.why}: spec.task.entrypoint")
    warnings += [f"left out: {text}" for text in left_out(proposal)]
    warnings += [f"{path} is copied for each episode; keep it elsewhere to start faster" for path in found.bulky]
    warnings += [f"{path} goes into the sandbox, where programs can read it" for path in found.secrets]
    if target.is_relative_to(found.root):
        warnings.append(f"{target.name} lies in the repository, where the agent can read it")
    python = proposal.requirements.python
    running = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if proposal.python is not None:
        warnings.append(
            f"the repository asks for Python {python}, and dgym runs under {running}: {proposal.python} is used"
        )
    elif not allows(python, sys.version_info[:2]):
        warnings.append(
            f"the repository asks for Python {python}, and dgym runs under {running}; make a virtual environment of"
            " another Python with pytest and the requirements, and name it: --python PATH"
        )
    return warnings
