"""``dgym migrate``: a manifest from a configuration of debug-gym."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dgym.agents import agent_names
from dgym.api import API_VERSION, BENCHMARK_LABEL, loads
from dgym.benchmarks import bundled, load_bundled
from dgym.benchmarks.datasets import adapter_names
from dgym.cli.manifests import NAME_LIMIT, local_path, resource_name
from dgym.cli.migrate.section import KEYS, NESTED, Fate, Migration, Note, read_sections
from dgym.cli.output import comment, echo, write_text
from dgym.documents import dump
from dgym.errors import ManifestError

_KNOWN = frozenset({*(key.partition(".")[0] for key in KEYS), *NESTED})


class Converted(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest's documents, notes on what is not in them, and what the next commands need.

    ``outside``: repositories outside of the manifest's directory. ``imports``: benchmarks that do not come with dgym.
    """

    documents: tuple[dict[str, Any], ...]
    notes: tuple[Note, ...]
    sections: tuple[str, ...]
    results: str | None = None
    outside: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()


_BENCHMARKS = {"swebench-debug": "swebench"}
_ADAPTERS = {"aider": "exercism"}
_Documents = dict[tuple[str, str], dict[str, Any]]
"""Specs by kind and name."""


def convert(sections: Mapping[str, Mapping[str, Any]], *, config: Path, output: Path | None) -> Converted:
    """Tasks and episodes for every section; sections with the same task share it.

    Raises:
        ManifestError: A section has no key of debug-gym, so the file is something else. An agent is unknown, or a
            task has neither a repository that exists nor an image.
    """
    for name, values in sections.items():
        if not values.keys() & _KNOWN:
            raise ManifestError(
                f"{config}: not a configuration of debug-gym: its section {name!r} has none of the known keys,"
                " such as env_kwargs, llm_name or max_steps"
            )
    documents: _Documents = {}
    migrations = [Migration(name, values) for name, values in sections.items()]
    for migration in migrations:
        _check_agent(migration, config)
    repositories: list[Path] = []
    for migration in migrations:
        if "benchmark" in migration.run:
            _add_benchmark(migration, documents)
        else:
            repositories += _add_custom(migration, documents, config=config, output=output)
    folder = Path.cwd() if output is None else output.absolute().parent
    return Converted(
        documents=tuple(
            {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
            for (kind, name), spec in documents.items()
        ),
        notes=tuple(note for migration in migrations for note in migration.notes),
        sections=tuple(sections),
        results=next((str(each.run["results"]) for each in migrations if "results" in each.run), None),
        imports=tuple(dict.fromkeys(each.run["import"] for each in migrations if "import" in each.run)),
        outside=tuple(dict.fromkeys(str(path) for path in repositories if not _is_below(path, folder))),
    )


def manifest_text(converted: Converted, *, config: Path) -> str:
    """The documents as YAML, with what is lost or different as comments at the top."""
    head = [f"# Converted from {comment(config.name)} by dgym migrate."]
    for fate in (Fate.LOST, Fate.CHANGED):
        head += [f"# {fate}: {comment(text)}" for text in describe(converted, fate)]
    return "\n".join(head) + "\n" + "---\n".join(map(dump, converted.documents))


def describe(converted: Converted, fate: Fate) -> list[str]:
    """One line for each key and reason, with the sections it is about unless those are all."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for note in converted.notes:
        if note.fate is fate:
            grouped.setdefault((note.key, note.text), []).append(note.section)
    return [
        f"{key}: {text}" if set(about) == set(converted.sections) else f"{key} of {', '.join(about)}: {text}"
        for (key, text), about in grouped.items()
    ]


def _add(documents: _Documents, kind: str, name: str, spec: dict[str, Any]) -> str:
    """The name under which ``spec`` is in the manifest: another spec of the same name has a number after it."""
    free, number = name, 2
    while documents.setdefault((kind, free), spec) != spec:
        free, number = f"{name[: NAME_LIMIT - 5].rstrip('-')}-{number}", number + 1
    return free


def _add_custom(migration: Migration, documents: _Documents, *, config: Path, output: Path | None) -> list[Path]:
    """Add a DebugTask over the repository, where there is one, and an Episode; return the repositories."""
    path = migration.run.get("path")
    repository = None if path is None else _find(path, config)
    if repository is not None and not repository.is_dir():
        raise ManifestError(
            f"{config}: there is no directory {path} here, beside the configuration or one level above it; correct the"
            f" path of section {migration.name}, or start dgym migrate where it is"
        )
    if repository is None and "image" not in migration.task:
        raise ManifestError(
            f"{config}: section {migration.name} has neither a repository nor an image; set env_kwargs.path or"
            " task_data.path"
        )
    name = _name(config.stem if repository is None else repository.name)
    source = {} if repository is None else {"source": {"localPath": local_path(repository, output)}}
    spec = {**source, **migration.task}
    if spec.get("debugEntrypoint") in (None, spec.get("entrypoint")):
        spec.pop("debugEntrypoint", None)
    if "submit" not in migration.tools:
        # debug-gym ends an episode as soon as its tests pass, and its agents may have no tool to ask for the end.
        spec["scoring"] = {"stopWhenEvalPasses": True}
    task = _add(documents, "DebugTask", name, spec)
    episode = {"taskRef": {"name": task}, **_agent(migration)}
    _add(documents, "Episode", _name(f"{name}-{migration.name}"), episode)
    return [] if repository is None else [repository]


def _add_benchmark(migration: Migration, documents: _Documents) -> None:
    """An EpisodeSet over the tasks of a benchmark."""
    named, problems = str(migration.run["benchmark"]), migration.run.get("problems", "all")
    benchmark = _BENCHMARKS.get(named, named)
    wanted = [_task_name(str(problem)) for problem in problems] if isinstance(problems, list) else []
    tasks: dict[str, Any] = {"tasks": [{"name": name} for name in wanted]}
    if benchmark in bundled():
        known = [task.metadata.name for task in load_bundled(benchmark)]
        chosen = [name for name in wanted if name in known]
        tasks = {"tasks": [{"name": name} for name in chosen or known]}
        text = (
            f"dgym's {benchmark} has programs of its own: {', '.join(known)}; for debug-gym's, convert a configuration"
            " with the directory of each as path"
        )
        migration.note("problems", text, Fate.LOST if chosen else Fate.CHANGED)
    else:
        label = f"{BENCHMARK_LABEL}: {_name(benchmark)}"
        if not wanted:
            tasks = {"taskSelector": {"matchLabels": {BENCHMARK_LABEL: _name(benchmark)}}}
        if not wanted and problems != "all":
            migration.note("problems", f"{problems!r}: the set takes every task with the label {label}")
        migration.run["import"] = benchmark
        text = f"{named} does not come with dgym: {_import_command(benchmark)} reads it"
        migration.note("benchmark", text, Fate.CHANGED)
    for key in dict.fromkeys(migration.origins.values()):
        migration.note(key, "belongs to the tasks of the benchmark, which say it themselves")
    if migration.tools and "submit" not in migration.tools:
        migration.tools.append("submit")
        migration.note("tools", "submit was added: the benchmark's tasks do not end by themselves", Fate.CHANGED)
    _add(documents, "EpisodeSet", _name(f"{benchmark}-{migration.name}"), {**tasks, "template": _agent(migration)})


def _agent(migration: Migration) -> dict[str, Any]:
    parameters = {"parameters": migration.parameters} if migration.parameters else {}
    tools = migration.tool_list()
    return {"agent": {**migration.agent, **parameters}, **({"tools": tools} if tools else {})}


def _check_agent(migration: Migration, config: Path) -> None:
    name, known = migration.agent["name"], agent_names()
    if name not in known and ":" not in name:
        raise ManifestError(
            f"{config}: {migration.agent_key} of section {migration.name}: there is no agent {migration.kind!r}; set it"
            f" to one of {', '.join(known)}, or to package.module:Class for an agent of your own"
        )


def _name(text: str) -> str:
    return resource_name(text, "task")


def _task_name(text: str) -> str:
    """The name that ``dgym benchmark`` gives the task of an instance."""
    return resource_name(text, "task", limit=200)


def _import_command(benchmark: str) -> str:
    adapter = _ADAPTERS.get(benchmark, benchmark)
    if adapter not in adapter_names():
        adapter = "NAME"
    option = "" if adapter == benchmark else f" --adapter {adapter}"
    return f"dgym benchmark import {benchmark} --from FILE{option}"


def _find(path: str, config: Path) -> Path:
    """The directory, as debug-gym finds it from where it is started, or near the configuration."""
    given = Path(path).expanduser()
    bases = (Path.cwd(), config.absolute().parent, config.absolute().parent.parent)
    candidates = [Path(os.path.normpath(base / given)) for base in bases]
    return next((candidate for candidate in candidates if candidate.is_dir()), candidates[0])


def _is_below(repository: Path, folder: Path) -> bool:
    return repository.resolve().is_relative_to(folder.resolve())


def convert_file(source: str, target: str | None, *, agent: str | None, force: bool) -> None:
    """Write or print the manifest, then the outcomes of the keys and the next command."""
    config, output = Path(source), Path(target) if target is not None else None
    converted = convert(read_sections(config, agent), config=config, output=output)
    text = manifest_text(converted, config=config)
    loads(text, source=f"the manifest made of {config}")
    if output is None:
        echo(text, nl=False)
    else:
        write_text(output, text, force=force)
        echo(f"wrote {output}", err=True)
    for fate in Fate:
        found = describe(converted, fate)
        if found:
            echo("\n".join([f"{fate}:", *(f"  {line}" for line in found)]), err=True)
    _print_next(output, converted)


def _print_next(output: Path | None, converted: Converted) -> None:
    manifest = shlex.quote(str(output)) if output is not None else "MANIFEST"
    options = "".join(f" --allow-local-path {shlex.quote(path)}" for path in converted.outside)
    options += f" --results {shlex.quote(converted.results)}" if converted.results else ""
    lines, folders = [], ""
    for benchmark in converted.imports:
        lines += [
            _import_command(benchmark),
            f"dgym benchmark render {benchmark} --output {benchmark}-tasks && rm {benchmark}-tasks/episodeset.yaml",
        ]
        folders += f" -f {benchmark}-tasks"
    lines.append(f"dgym run {manifest}{folders}{options}")
    echo("Next: " + "\n      ".join(lines), err=True)
