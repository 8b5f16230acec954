"""``dgym init``: a manifest for a repository, from a survey of its tests and requirements."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dgym.cli.completion import complete_agents

if TYPE_CHECKING:
    from dgym.cli.init.manifest import Proposal


@click.command("init")
@click.argument("directory", default=".", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="Where the manifest goes; - prints it. [default: NAME.yaml outside of the repository]",
)
@click.option("--agent", default="human", show_default=True, metavar="NAME", shell_complete=complete_agents)
@click.option(
    "--policy-files", is_flag=True, help="Put the patterns into .debugignore and .debugreadonly of the repository."
)
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.option("--check", is_flag=True, help="Run the repository's tests afterwards, as dgym check does.")
def command(directory: Path, output: Path | None, agent: str, policy_files: bool, force: bool, check: bool) -> None:
    """Write a manifest for a repository of your own.

    DIRECTORY is the repository (default: the current directory). Its files show its tests, requirements and Python;
    nothing of it is executed without --check. The manifest is written into the current directory or, from inside the
    repository, beside it, because the agent gets everything that lies in the repository.
    """
    from dgym.cli.init.manifest import propose
    from dgym.cli.init.survey import read_requirements, survey
    from dgym.cli.yaml_text import write_text

    if check and output == Path("-"):
        raise click.UsageError("--check needs a manifest that is written; it does not go with --output -")
    root = directory.resolve()
    target = None if output == Path("-") else output.absolute() if output else _default_target(root)
    found = survey(root)
    requirements = read_requirements(root, found.pytest)
    proposal = propose(found, requirements, agent=agent)
    if target is None:
        click.echo(_checked_text(proposal, target), nl=False)
        return
    if policy_files:
        _write_policy_files(proposal, force=force)
        proposal = propose(survey(root), requirements, agent=agent)
    write_text(target, _checked_text(proposal, target), force=force)
    click.echo(f"wrote {target}")
    _report(proposal, target)
    if check:
        from dgym.api import load_documents
        from dgym.cli.check import check_and_show, tasks_of

        check_and_show(tasks_of(load_documents(target, allow_local_paths=[root])))


def _default_target(root: Path) -> Path:
    from dgym.cli.init.manifest import manifest_name

    here = Path.cwd()
    return (root.parent if here.is_relative_to(root) else here) / f"{manifest_name(root)}.yaml"


def _checked_text(proposal: "Proposal", target: Path | None) -> str:
    """The manifest, which must be valid whatever the repository is called and holds."""
    from dgym.api import loads
    from dgym.cli.init.manifest import local_path, manifest_text

    text = manifest_text(proposal, local_path=local_path(proposal.found.root, target))
    loads(text, source=str(target or "the manifest"))
    return text


def _write_policy_files(proposal: "Proposal", *, force: bool) -> None:
    from dgym.cli.yaml_text import write_text

    root = proposal.found.root
    for name, patterns in ((".debugignore", proposal.ignore), (".debugreadonly", proposal.read_only)):
        if patterns:
            write_text(root / name, "".join(f"{pattern}\n" for pattern in patterns), force=force)
            click.echo(f"wrote {root / name}")


def _report(proposal: "Proposal", target: Path) -> None:
    """Print the findings, the warnings and the next commands."""
    found, requirements = proposal.found, proposal.requirements
    click.echo(f"tests: {proposal.entrypoint.command} ({proposal.entrypoint.why})")
    click.echo(f"requirements: {len(requirements.lines)} from {', '.join(requirements.files) or 'nowhere'}")
    for warning in _warnings(proposal, target):
        click.echo(f"Warning: {warning}", err=True)
    results = f" --results {_quoted(found.root.parent / 'results')}" if Path.cwd().is_relative_to(found.root) else ""
    manifest = _quoted(target)
    outside = "" if found.root.is_relative_to(target.parent) else f" --allow-local-path {_quoted(found.root)}"
    click.echo(f"\nNext:\n  dgym check {manifest}{outside}\n  dgym run {manifest}{outside}{results}")


def _quoted(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))


def _warnings(proposal: "Proposal", target: Path) -> list[str]:
    from dgym.cli.init.survey import allows

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
