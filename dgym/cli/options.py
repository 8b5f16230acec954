"""Options that several commands share, and their completion in the shell; a completion that fails offers nothing."""

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_agents(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The agents that are installed."""
    from dgym.agents import agent_names

    return _starting(agent_names(), incomplete)


def complete_tools(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The tools that are installed."""
    from dgym.tools import available_tools

    return _starting(available_tools(), incomplete)


def complete_bundled(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The benchmarks that come with dgym."""
    from dgym.benchmarks import bundled

    return _starting(bundled(), incomplete)


def complete_paths(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files and directories, completed by the shell itself."""
    return [CompletionItem(incomplete, type="file")]


def complete_directories(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Directories, completed by the shell itself."""
    return [CompletionItem(incomplete, type="dir")]


def complete_overrides(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The paths that ``-p`` can set, up to the value; values of names that are known."""
    path, equals, value = incomplete.partition("=")
    if equals:
        known: dict[str, Callable[[], Iterable[str]]] = {"agent.name": _agents, "tools": _tools}
        return _starting([f"{path}={name}" for name in known.get(path, tuple)()], f"{path}={value}")
    from dgym.api import EpisodeSetSpec, EpisodeSpec, known_paths, struct_type

    paths = list(known_paths(struct_type(EpisodeSpec)))
    paths += [f"set.{one}" for one in known_paths(struct_type(EpisodeSetSpec)) if not one.startswith("template")]
    return _starting([f"{one}=" for one in paths], incomplete)


def _agents() -> Iterable[str]:
    from dgym.agents import agent_names

    return agent_names()


def _tools() -> Iterable[str]:
    from dgym.tools import available_tools

    return (f"[{name}]" for name in available_tools())


def _starting(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


output_option = click.option(
    "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Form of the output."
)
sandbox_option = click.option(
    "--sandbox",
    type=click.Choice(["auto", "bubblewrap", "container", "none"]),
    default="auto",
    show_default=True,
    help="Where programs run; auto: a container for tasks with an image, else bubblewrap, else a container.",
)
engine_option = click.option(
    "--engine",
    type=click.Choice(["auto", "docker", "podman"]),
    default="auto",
    show_default=True,
    help="What runs containers; auto: the first that answers.",
)
python_option = click.option(
    "--python",
    metavar="PATH",
    shell_complete=complete_paths,
    help="An interpreter or a virtual environment for the tasks' programs, in place of their requirements.",
)

build_requirements_option = click.option(
    "--build-requirements",
    is_flag=True,
    help="Build source distributions among the requirements; their code then runs here, outside the sandbox.",
)
llm_config_option = click.option(
    "--llm-config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="The configuration of models. [default: LLM_CONFIG_FILE_PATH, else ~/.config/dgym/llm.yaml]",
)

context_option = click.option(
    "--context", metavar="NAME", help="The context of the kubeconfig. [default: its current one]"
)
namespace_option = click.option(
    "-n", "--namespace", metavar="NAME", help="The namespace. [default: the context's, else default]"
)
system_namespace_option = click.option(
    "--system-namespace",
    metavar="NAME",
    default="dgym-system",
    show_default=True,
    help="The namespace in which dgym is installed.",
)


def check_python(python: str | None) -> str | None:
    """``--python`` as an absolute path; a usage error when nothing is there."""
    if python is None:
        return None
    from pathlib import Path

    path = Path(python).expanduser()
    if not path.exists():
        raise click.BadParameter(
            f"{python} does not exist; give an interpreter or a virtual environment", param_hint="--python"
        )
    # Not resolved: a virtual environment is found by the link to its interpreter.
    return str(path.absolute())


class Inputs(NamedTuple):
    """The manifests, repositories and benchmark that a command line names, and the changes to their episodes."""

    manifests: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    bundled: str | None = None
    agent: str | None = None
    assignments: tuple[str, ...] = ()
    entrypoint: str | None = None
    local_paths: tuple[str, ...] = ()


class ImageOptions(NamedTuple):
    """How images are built: ``registry`` gets them, ``base`` and ``builder`` as the options of these names."""

    registry: str | None = None
    base: str | None = None
    builder: Any = "auto"


_REGISTRY = re.compile(r"[a-z0-9.-]+(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")


def check_registry(_context: click.Context, _parameter: click.Parameter, registry: str | None) -> str | None:
    """A registry with an optional path, without a tag."""
    if registry is not None and not _REGISTRY.fullmatch(registry):
        raise click.BadParameter(f"{registry!r} is not a registry; write host[:port][/path], such as ghcr.io/team")
    return registry


base_option = click.option(
    "--base", metavar="IMAGE", help="The image to start from, with python3. [default: python:VERSION-slim]"
)
builder_option = click.option(
    "--builder",
    type=click.Choice(["auto", "docker", "podman", "buildah", "buildctl"]),
    default="auto",
    show_default=True,
    help="What builds; auto: the first that answers.",
)


local_paths_option = click.option(
    "--allow-local-path",
    "local_paths",
    multiple=True,
    metavar="PATH",
    shell_complete=complete_directories,
    help="Accept a localPath of a manifest that leads out of the manifest's directory, to PATH or below it.",
)

_INPUTS: dict[str, Callable[[Any], Any]] = {
    "manifests": click.argument("manifests", nargs=-1, metavar="MANIFEST...", shell_complete=complete_paths),
    "folders": click.option(
        "-f",
        "folders",
        multiple=True,
        metavar="PATH",
        shell_complete=complete_paths,
        help="A manifest, or a folder of manifests.",
    ),
    "bundled": click.option(
        "--bundled",
        metavar="NAME",
        shell_complete=complete_bundled,
        help="A benchmark that comes with dgym, such as mini_nightmare.",
    ),
    "agent": click.option(
        "--agent", metavar="NAME", shell_complete=complete_agents, help="The agent; the same as -p agent.name=NAME."
    ),
    "assignments": click.option(
        "-p",
        "assignments",
        multiple=True,
        metavar="PATH=VALUE",
        shell_complete=complete_overrides,
        help="Change a field of the episodes' spec, such as agent.maxSteps=20; of a set's own spec: set.samples=4.",
    ),
    "entrypoint": click.option(
        "--entrypoint", metavar="COMMAND", help="What runs the tests of repositories. [default: python -m pytest -q]"
    ),
    "local_paths": local_paths_option,
}


def takes_inputs(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of these fields of ``Inputs`` (default: all of them), and ``inputs`` as argument."""
    fields = names or Inputs._fields

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def collected(**options: Any) -> None:
            inputs = Inputs(**{name: options.pop(name) for name in fields})
            if not inputs.manifests and not inputs.folders and not inputs.bundled:
                benchmark = ", or a benchmark with --bundled" if "bundled" in fields else ""
                raise click.UsageError(f"name at least one manifest{benchmark}")
            command(inputs=inputs, **options)

        for name in reversed(fields):
            collected = _INPUTS[name](collected)
        return collected

    return decorate
