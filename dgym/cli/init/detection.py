"""The environment of a repository that is named without a manifest: the one that ``dgym init`` proposes."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dgym.api import DebugTask, Episode, Loaded, loads
from dgym.cli.init import Proposal, left_out, manifest_text, pin, propose
from dgym.cli.init.dependencies import Requirements, read_requirements
from dgym.cli.init.survey import survey
from dgym.cli.manifests import local_path
from dgym.cli.output import echo
from dgym.errors import ManifestError
from dgym.terminal import printable_line


def with_environments(loaded: Sequence[Loaded], entrypoint: str | None, python: str | None) -> list[Loaded]:
    """Add to each repository among ``loaded`` its environment and, without ``entrypoint``, its command of tests.

    With ``python``, an interpreter of the user's, nothing is installed besides the repository itself.

    Raises:
        ManifestError: ``entrypoint`` is needed, because no tests were found.
    """
    return [_detected(item, entrypoint, python) if Path(item.file).is_dir() else item for item in loaded]


def _detected(item: Loaded, entrypoint: str | None, python: str | None) -> Loaded:
    task = item.resource
    if not isinstance(task, DebugTask):
        return item  # The Episode of a repository refers to its task.
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
    """Print what was chosen and how to keep it, in a line, and what was left out."""
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
