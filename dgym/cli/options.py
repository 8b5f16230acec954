"""Options that several commands share, and their shell completion."""

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_agents(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of installed agents."""
    from dgym.agents import agent_names

    return _starting(agent_names(), incomplete)


def complete_tools(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of installed tools."""
    from dgym.tools import available_tools

    return _starting(available_tools(), incomplete)


def complete_bundled(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of benchmarks that come with dgym."""
    from dgym.benchmarks import bundled

    return _starting(bundled(), incomplete)


def complete_paths(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Leave the completion of files and directories to the shell."""
    return [CompletionItem(incomplete, type="file")]


def complete_directories(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Leave the completion of directories to the shell."""
    return [CompletionItem(incomplete, type="dir")]


def complete_overrides(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the paths that ``-p`` can set and, for ``agent.name`` and ``tools``, the values."""
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
    "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Format of the output."
)
_sandbox = click.option(
    "--sandbox",
    type=click.Choice(["auto", "bubblewrap", "container", "none"]),
    default="auto",
    show_default=True,
    help="The kind of sandbox. auto: a container for tasks with an image, else bubblewrap, else a container.",
)
engine_option = click.option(
    "--engine",
    type=click.Choice(["auto", "docker", "podman"]),
    default="auto",
    show_default=True,
    help="The container engine. auto: the first that answers.",
)
_python = click.option(
    "--python",
    metavar="PATH",
    shell_complete=complete_paths,
    help="An interpreter or a virtual environment for the tasks' programs, instead of their requirements.",
)

_build_requirements = click.option(
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
workers_option = click.option(
    "--workers",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Episodes that run at the same time. [default: number of CPUs]",
)


def repeat_option(text: str) -> Callable[[Any], Any]:
    """Return the option ``--repeat`` with the help ``text``."""
    return click.option("--repeat", type=click.IntRange(1, 100), default=2, show_default=True, metavar="N", help=text)


_OPENING = {
    "sandbox": _sandbox,
    "engine": engine_option,
    "python": _python,
    "build_requirements": _build_requirements,
}


def _takes(
    parameter: str,
    known: Mapping[str, Callable[[Any], Any]],
    names: tuple[str, ...],
    make: Callable[[dict[str, Any]], Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options ``names`` of ``known`` (default: all) to a command. ``parameter`` gets ``make(values)``."""
    fields = names or tuple(known)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def collected(**options: Any) -> None:
            chosen = {name: options.pop(name) for name in fields}
            command(**{parameter: make(chosen)}, **options)

        for name in reversed(fields):
            collected = known[name](collected)
        return collected

    return decorate


def takes_opening(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of these fields of ``Opening`` (default: all) to a command, which gets them as ``opening``."""
    return _takes("opening", _OPENING, names, _opening)


def _opening(chosen: dict[str, Any]) -> Any:
    import msgspec

    from dgym.env import Opening

    chosen["python"] = _existing(chosen["python"])
    return msgspec.convert(chosen, Opening)


def _existing(python: str | None) -> str | None:
    """Return ``--python`` as an absolute path. Raise a usage error if it does not exist."""
    if python is None:
        return None
    from pathlib import Path

    path = Path(python).expanduser()
    if not path.exists():
        raise click.BadParameter(
            f"{python} does not exist; give an interpreter or a virtual environment", param_hint="--python"
        )
    # Symbolic links are not resolved, because the link to the interpreter identifies a virtual environment.
    return str(path.absolute())


class ClusterPlace(NamedTuple):
    """Values of the options that choose a cluster, a namespace in it, and the namespace in which dgym is installed.

    Without ``context`` the current context of the kubeconfig is used, and without ``namespace`` its namespace.
    """

    namespace: str | None = None
    context: str | None = None
    system_namespace: str = "dgym-system"


_CLUSTER_PLACE = {
    "namespace": click.option(
        "-n", "--namespace", metavar="NAME", help="The namespace. [default: the namespace of the context, else default]"
    ),
    "context": click.option(
        "--context", metavar="NAME", help="The context of the kubeconfig. [default: the current context]"
    ),
    "system_namespace": click.option(
        "--system-namespace",
        metavar="NAME",
        default=ClusterPlace().system_namespace,
        show_default=True,
        help="The namespace in which dgym is installed.",
    ),
}


def takes_cluster_place(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of these fields of ``ClusterPlace`` (default: all) to a command, which gets them as ``place``."""
    return _takes("place", _CLUSTER_PLACE, names, lambda chosen: ClusterPlace(**chosen))


class Inputs(NamedTuple):
    """Values of the options that name manifests, repositories and a benchmark, and that change their episodes."""

    manifests: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    bundled: str | None = None
    agent: str | None = None
    assignments: tuple[str, ...] = ()
    entrypoint: str | None = None
    local_paths: tuple[str, ...] = ()


class ImageOptions(NamedTuple):
    """Values of the options for building images. Images are pushed to ``registry`` if it is set."""

    registry: str | None = None
    base: str | None = None
    builder: Any = "auto"


_REGISTRY = re.compile(r"[a-z0-9.-]+(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")


def check_registry(_context: click.Context, _parameter: click.Parameter, registry: str | None) -> str | None:
    """Return ``registry``. Raise a usage error unless it is a host with an optional port and path."""
    if registry is not None and not _REGISTRY.fullmatch(registry):
        raise click.BadParameter(f"{registry!r} is not a registry; write host[:port][/path], such as ghcr.io/team")
    return registry


base_option = click.option(
    "--base", metavar="IMAGE", help="The base image. It must contain python3. [default: python:VERSION-slim]"
)
builder_option = click.option(
    "--builder",
    type=click.Choice(["auto", "docker", "podman", "buildah", "buildctl"]),
    default="auto",
    show_default=True,
    help="The program that builds images. auto: the first that answers.",
)


local_paths_option = click.option(
    "--allow-local-path",
    "local_paths",
    multiple=True,
    metavar="PATH",
    shell_complete=complete_directories,
    help="Allow a localPath outside of the manifest's directory, if it is PATH or below PATH.",
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
        "--agent", metavar="NAME", shell_complete=complete_agents, help="Name of the agent, as with -p agent.name=NAME."
    ),
    "assignments": click.option(
        "-p",
        "assignments",
        multiple=True,
        metavar="PATH=VALUE",
        shell_complete=complete_overrides,
        help="Change a field of the episodes' spec, such as agent.maxSteps=20, or of a set: set.samples=4.",
    ),
    "entrypoint": click.option(
        "--entrypoint",
        metavar="COMMAND",
        help="The command that runs the tests of repositories. [default: python -m pytest -q]",
    ),
    "local_paths": local_paths_option,
}


def takes_inputs(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of these fields of ``Inputs`` (default: all) to a command, which gets them as ``inputs``."""
    return _takes("inputs", _INPUTS, names, _inputs)


def _inputs(chosen: dict[str, Any]) -> Inputs:
    inputs = Inputs(**chosen)
    if not inputs.manifests and not inputs.folders and not inputs.bundled:
        benchmark = ", or a benchmark with --bundled" if "bundled" in chosen else ""
        raise click.UsageError(f"name at least one manifest{benchmark}")
    return inputs
