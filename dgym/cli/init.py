"""``dgym init``: write a manifest for a repository from a survey of its tests and requirements."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from dgym.api import load_documents, loads
from dgym.cli.check import check_all, show_assessments, tasks_of
from dgym.cli.manifests import local_path, resource_name
from dgym.cli.options import complete_agents
from dgym.cli.output import FAILED, echo, write_text
from dgym.cli.proposal import Proposal, left_out, manifest_text, pin, propose
from dgym.env import Opening
from dgym.sandbox.local import requirement_name
from dgym.session.scoring import ALREADY_PASSES, Assessment, UnmetRequirement
from dgym.survey import Requirements, RequirementsSource, allows, distribution_of, read_requirements, survey
from dgym.terminal import printable_line

_ROUNDS = 3
_PROJECTS = 10
"""Maximum number of projects of a repository that a warning lists."""


@click.command("init")
@click.argument("directory", default=".", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="File for the manifest; - prints it. [default: NAME.yaml outside of the repository]",
)
@click.option("--agent", default="human", show_default=True, metavar="NAME", shell_complete=complete_agents)
@click.option(
    "--policy-files", is_flag=True, help="Write the patterns into .debugignore and .debugreadonly of the repository."
)
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.option(
    "--check/--no-check",
    default=None,
    help="Run the repository's tests in a sandbox, and add missing requirements. [default: on a terminal]",
)
@click.option(
    "--yes", is_flag=True, help="Add missing requirements, and install a missing Python with uv, without asking."
)
def init_command(
    directory: str, output: str | None, agent: str, policy_files: bool, force: bool, check: bool | None, yes: bool
) -> None:
    """Write a manifest for a repository of your own.

    DIRECTORY is the repository (default: the current directory). dgym detects tests, requirements and Python from its
    files, and resolves the requirements to exact versions. Code of the repository is not executed outside of a sandbox,
    and without --check it is not executed at all. The manifest is written into the current directory. From inside the
    repository it is written beside it, because the agent can read all files in the repository.
    """
    if check and output == "-":
        raise click.UsageError("--check needs a manifest file, so it cannot be combined with --output -")
    if check is None:
        check = output != "-" and sys.stdin.isatty() and sys.stdout.isatty()
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


def _check_and_complete(proposal: Proposal, target: Path, *, yes: bool) -> bool:
    """Run the tests, add missing requirements, and print the remaining problems.

    It is a note, not a problem, if all tests pass: the manifest is correct, and the user may still introduce a bug.

    Returns:
        True if problems remain.
    """
    root, requirements = proposal.found.root, proposal.requirements
    for _ in range(_ROUNDS):
        assessments = check_all(tasks_of(load_documents(target, allow_local_paths=[root])), Opening(), 1, yes=yes)
        lacking = missing_requirements(assessments[0].unmet, requirements, proposal.found.names)
        question = f"The tests lack {', '.join(lacking)}. Add it to the requirements?"
        if not lacking or not (yes or (sys.stdin.isatty() and click.confirm(question, default=True))):
            break
        source = RequirementsSource(file="a run of the tests", lines=tuple(lacking))
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


def missing_requirements(
    unmet: Sequence[UnmetRequirement], requirements: Requirements, own: frozenset[str]
) -> list[str]:
    """Return the known distributions that meet the unmet requirements of the tests and that are not required yet.

    Modules in ``own`` are skipped: they belong to the repository, so a distribution of the index would be wrong.
    """
    known = {requirement_name(line) for line in requirements.lines} | {requirements.own_name}
    outside = [requirement for requirement in unmet if requirement.kind != "module" or requirement.name not in own]
    names = [name for requirement in outside for name in [distribution_of(requirement.kind, requirement.name)] if name]
    return [name for name in dict.fromkeys(names) if requirement_name(name) not in known]


def _default_target(root: Path) -> Path:
    here = Path.cwd()
    return (root.parent if here.is_relative_to(root) else here) / f"{resource_name(root.name)}.yaml"


def _checked_text(proposal: Proposal, target: Path | None) -> str:
    """Return the text of the manifest. Loading it checks that names in the repository do not make it invalid."""
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
    found, requirements = proposal.found, proposal.requirements
    echo(printable_line(f"tests: {proposal.entrypoint.command} ({proposal.entrypoint.why})"))
    declared = f"{len(requirements.lines)} from {', '.join(requirements.files)}" if requirements.files else "none found"
    if proposal.pinned.lines:
        declared += f", {len(proposal.pinned.lines)} exact versions with their dependencies"
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
        warnings.append(f"no Python file was found in {found.root}")
    if found.projects and not found.builds:
        shown = ", ".join(found.projects[:_PROJECTS]) + (", …" if len(found.projects) > _PROJECTS else "")
        warnings.append(
            f"{found.root} has no build system, but these directories have one: {shown}; they are not installed. "
            f"Write a manifest for one: dgym init {_quoted(found.root / found.projects[0])}"
        )
    if not proposal.entrypoint.certain:
        warnings.append(f"{proposal.entrypoint.why}: spec.task.entrypoint")
    warnings += [f"left out: {text}" for text in left_out(proposal)]
    warnings += [f"{path} is copied for each episode; keep it elsewhere to start faster" for path in found.bulky]
    warnings += [f"{path} is copied into the sandbox, where programs can read it" for path in found.secrets]
    if target.is_relative_to(found.root):
        warnings.append(f"{target.name} is in the repository, where the agent can read it")
    python = proposal.requirements.python
    running = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if proposal.python is not None:
        warnings.append(
            f"the repository requires Python {python}, and dgym runs under {running}: {proposal.python} is used"
        )
    elif not allows(python, sys.version_info[:2]):
        warnings.append(
            f"the repository requires Python {python}, and dgym runs under {running}; make a virtual environment of"
            " another Python with pytest and the requirements, and name it: --python PATH"
        )
    return warnings
