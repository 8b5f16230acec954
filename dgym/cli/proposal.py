"""Propose a manifest for a repository: environment, test command, and patterns of ignored and read-only files."""

import asyncio
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dgym.api import DebugTask, Episode, Loaded, loads, split_hashes
from dgym.cli.manifests import local_path, resource_name
from dgym.cli.output import comment, echo
from dgym.documents import dump
from dgym.errors import ManifestError, SetupFailed
from dgym.sandbox.local import Pinned, known_pins, pin_requirements, requirement_name
from dgym.survey import (
    LIMIT,
    Requirements,
    Survey,
    allows,
    protected_patterns,
    read_requirements,
    read_text,
    survey,
    test_folders,
)
from dgym.terminal import printable_line

_PYTEST = "python -m pytest -q"
_TEST_FILES = 10
"""Maximum number of test files with unusual names in the entrypoint."""
_NEWEST, _OLDEST = 14, 8
_REBUILD = "python -m pip install -q --no-deps --no-build-isolation --use-pep517 -e ."


class Entrypoint(msgspec.Struct, frozen=True):
    """The command that runs the tests, and the reason for it. ``certain`` is False if it is only the default."""

    command: str
    why: str
    certain: bool = True


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a manifest. Patterns are empty if the repository has the policy file for them."""

    found: Survey
    requirements: Requirements
    pinned: Pinned
    python: str | None
    entrypoint: Entrypoint
    ignore: tuple[str, ...]
    read_only: tuple[str, ...]
    agent: str


def propose(found: Survey, requirements: Requirements, *, agent: str, pinned: Pinned | None = None) -> Proposal:
    """Propose a manifest for the surveyed repository. Without ``pinned``, it has the requirements as found."""
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
    """Return the newest Python that ``specifier`` allows, or None if it allows the one that runs dgym."""
    if allows(specifier, sys.version_info[:2]):
        return None
    return next((f"3.{minor}" for minor in range(_NEWEST, _OLDEST - 1, -1) if allows(specifier, (3, minor))), None)


def find_entrypoint(found: Survey, doctests: Sequence[str] = ()) -> Entrypoint:
    """Return the command that runs the tests. ``doctests`` are the repository's own pytest arguments for doctests."""
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
        return Entrypoint(f"{pytest} {named}", f"{holding[0]} contains tests")
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
    """Return the text of the manifest."""
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
    yield "    # The agent's instructions. Describe what goes wrong rather than where."
    yield "    instructions: The tests fail. Find the cause and repair it."
    yield ""
    yield f"    # Runs the tests ({comment(entrypoint.why)})."
    yield f"    entrypoint: {_scalar(entrypoint.command)}"
    yield "    entrypointTimeoutSeconds: 300"
    yield "    # The program that pdb starts, if it is not the tests:"
    yield "    # debugEntrypoint: python main.py"
    yield ""
    yield from _environment(proposal)
    yield from _policy(proposal)
    yield "    # The tests that count. Without names, every test must pass; with names, only these:"
    yield "    # scoring:"
    yield '    #   failToPass: ["tests/test_sum.py::test_empty"]'
    yield '    #   passToPass: ["tests/test_sum.py::test_one"]'
    yield ""
    yield "  # The agent: human is you at the keyboard, debug_agent uses a model; --agent NAME overrides it."
    yield "  agent:"
    yield f"    name: {_scalar(proposal.agent)}"
    yield "    # model: the name of a model in llm.yaml, which dgym init-llm-config writes"
    yield "    maxSteps: 50"
    yield "    # maxRewrites: 10"
    yield ""
    yield "  # The agent's own tools, unless tools are named here; dgym tools lists all tools."
    yield "  # tools: [listdir, view, grep, eval, pdb, rewrite, submit]"
    yield "  activeDeadlineSeconds: 3600"


def _environment(proposal: Proposal) -> Iterator[str]:
    requirements, found = proposal.requirements, proposal.found
    lines = proposal.pinned.lines[:LIMIT]
    origin = f", from {', '.join(requirements.files)}" if lines else "; no requirements were found"
    yield f"    # Prepared before the first run and shared by later runs{comment(origin)}."
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
    """Return a text with line and reason for each requirement that the environment does not include."""
    dropped = [f"{line}: {why}" for line, why in proposal.pinned.left_out]
    return [*proposal.requirements.left_out, *dropped]


def _policy(proposal: Proposal) -> Iterator[str]:
    files = proposal.found.policy_files
    if ".debugignore" in files:
        yield "    # The repository's .debugignore names the files that the tools do not show."
    else:
        yield "    # Files that tools do not show, as in .gitignore. They are still copied: keep secrets out."
        yield from _list("ignorePatterns", proposal.ignore)
    if ".debugreadonly" in files:
        yield "    # The repository's .debugreadonly names the files that the agent may not change."
    else:
        yield "    # Files that the agent sees and may not change."
        yield from _list("readOnlyPatterns", proposal.read_only)
    yield ""


def _list(name: str, items: Iterable[str]) -> Iterator[str]:
    items = list(items)
    yield f"    {name}:{'' if items else ' []'}"
    yield from (f"    {line}" for line in requirement_lines(items))


def _scalar(value: Any) -> str:
    return dump(value, flow=True).rstrip("\n")


def requirement_lines(requirements: Sequence[str]) -> list[str]:
    """Return the lines of a YAML list. A requirement with several hashes is a folded scalar with one hash per line."""
    made = []
    for item in requirements:
        plain, hashes = split_hashes(item)
        if len(hashes) > 1:
            made.append("  - >-")
            made += [f"    {word}" for word in (plain, *(f"--hash=sha256:{each}" for each in sorted(hashes)))]
        else:
            made.append(f"  - {dump(item, flow=True).rstrip()}")
    return made


def pin(requirements: Requirements, *, known: bool = False) -> Pinned | None:
    """Resolve requirements to exact versions. With ``known``, only versions that were resolved before are used.

    Returns:
        None without requirements, or, after a warning, if they cannot be resolved.
    """
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


def with_environments(loaded: Sequence[Loaded], entrypoint: str | None, python: str | None) -> list[Loaded]:
    """Add the proposed environment and, without ``entrypoint``, the proposed test command to each repository.

    With ``python``, an interpreter of the user, only the repository itself is installed.

    Raises:
        ManifestError: No tests were found, and ``entrypoint`` is None.
    """
    return [_detected(item, entrypoint, python) if Path(item.file).is_dir() else item for item in loaded]


def _detected(item: Loaded, entrypoint: str | None, python: str | None) -> Loaded:
    task = item.resource
    if not isinstance(task, DebugTask):
        return item  # It is the Episode that refers to the task of the repository.
    root = Path(item.file)
    found = survey(root)
    requirements = read_requirements(root, found)
    if python is not None:
        requirements = msgspec.structs.replace(requirements, sources=(), left_out=(), python="")
    proposal = propose(found, requirements, agent="human", pinned=pin(requirements, known=True))
    if entrypoint is None and not proposal.entrypoint.certain:
        raise ManifestError(f"{root}: no tests were found; name the command that runs them: --entrypoint COMMAND")
    (episode,) = loads(manifest_text(proposal, local_path=local_path(root, None)), source=str(root))
    assert isinstance(episode, Episode)
    assert episode.spec.task is not None
    proposed = episode.spec.task
    _report(task.metadata.name, proposal, requirements, entrypoint, python)
    spec = msgspec.structs.replace(
        task.spec,
        environment=proposed.environment,
        env=proposed.env,
        build_commands=proposed.build_commands,
        entrypoint=entrypoint or proposed.entrypoint,
    )
    return msgspec.structs.replace(item, resource=msgspec.structs.replace(task, spec=spec))


def _report(
    name: str, proposal: Proposal, requirements: Requirements, entrypoint: str | None, python: str | None
) -> None:
    """Print the proposal in one line, and a warning for each requirement that was left out."""
    running = f"{sys.version_info[0]}.{sys.version_info[1]}"
    parts = [python or f"Python {proposal.python or running}"]
    if requirements.files:
        number = len(requirements.lines)
        parts.append(f"{number} requirement{'s' * (number > 1)} from {', '.join(requirements.files)}")
    elif python is None:
        parts.append("no requirements found")
    if proposal.found.builds:
        parts.append("the repository itself installed")
    if entrypoint is None:
        parts.append(f"tests by {proposal.entrypoint.command}")
    keep = f"dgym init {shlex.quote(str(proposal.found.root))} writes this into a manifest"
    echo(printable_line(f"{name}: {', '.join(parts)}; {keep}"), err=True)
    for text in left_out(proposal):
        echo(printable_line(f"Warning: {name}: left out: {text}"), err=True)
    if entrypoint is not None and not proposal.found.tests and proposal.entrypoint.certain:
        command = shlex.quote(proposal.entrypoint.command)
        echo(printable_line(f"{name}: {proposal.entrypoint.why}: --entrypoint {command} runs it"), err=True)
