"""Create an ordered list of jobs from manifests, and find those that a results directory has finished already."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dgym.agents import BaseAgent, agent_names, load_agent
from dgym.api import (
    DebugTask,
    Episode,
    EpisodeSet,
    Loaded,
    PlannedEpisode,
    SandboxPool,
    child_name,
    digest,
    expand,
    find_task,
    with_cost_limit,
)
from dgym.episodes._local import Job, RunOptions, effective_tools
from dgym.episodes._player import Models
from dgym.errors import ManifestError
from dgym.results import StoredResult, write_plan
from dgym.tools import load_tools
from dgym.workspace.sources import walk_repository


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs in their starting order, and the resources that will not run, with the reasons."""

    jobs: tuple[Job, ...]
    left_out: tuple[str, ...] = ()


def make_plan(loaded: Sequence[Loaded], *, options: RunOptions, bundled: Iterable[DebugTask] = ()) -> Plan:
    """Create jobs for every Episode and EpisodeSet. Tasks are looked up in the given resources, then the bundled ones.

    Raises:
        ManifestError: A task is missing, an episode has no agent, or there is nothing to run.
        PluginError: An agent or a tool cannot be loaded. This is checked before anything runs.
    """
    given = {item.resource.metadata.name: item.resource for item in loaded if isinstance(item.resource, DebugTask)}
    known = {**{task.metadata.name: task for task in bundled}, **given}
    jobs: list[Job] = []
    fingerprints = _Fingerprints()
    left_out: list[str] = []
    for item in loaded:
        resource = item.resource
        if isinstance(resource, DebugTask | SandboxPool):
            continue  # Sandbox pools start pods in advance, which a local run does not use.
        why = _why_not_planned(resource)
        if why is not None:
            left_out.append(f"{resource.kind} {resource.metadata.name} ({why})")
            continue
        if isinstance(resource, Episode):
            planned = [PlannedEpisode(episode=resource, task=find_task(resource, known.values()))]
        elif resource.spec.task_selector is None:
            planned = expand(resource, known.values())
        else:
            planned = expand(resource, (given or known).values())
        jobs.extend(_jobs(planned, item, options, fingerprints))
    if not jobs and not left_out:
        raise ManifestError(_nothing_to_run(given))
    _check_plugins(jobs)
    jobs.sort(key=lambda job: -job.priority)
    return Plan(jobs=tuple(jobs), left_out=tuple(left_out))


def episodes_for(tasks: Sequence[Loaded]) -> list[Loaded]:
    """Create an Episode without an agent for each DebugTask."""
    found = []
    for item in tasks:
        metadata = item.resource.metadata
        data = {
            "metadata": {"name": child_name(metadata.name, 0).removesuffix("-0"), "namespace": metadata.namespace},
            "spec": {"taskRef": {"name": metadata.name}},
        }
        found.append(Loaded(msgspec.convert(data, Episode), item.file, item.document))
    return found


def record_plan(jobs: Sequence[Job]) -> None:
    """Write the list of planned episodes of each set into the results directory.

    Raises:
        ManifestError: The directory cannot be written.
    """
    by_root: dict[str, dict[str, list[str]]] = {}
    for job in jobs:
        name = job.group.rpartition("#")[2]
        by_root.setdefault(job.options.results, {}).setdefault(name, []).append(job.results_path)
    for root, sets in by_root.items():
        try:
            write_plan(Path(root), sets)
        except OSError as error:
            raise ManifestError(f"--results {root}: {error.strerror or error}; choose another directory") from error


def unfinished(jobs: Iterable[Job], *, force: bool = False, force_failed: bool = False) -> Iterator[Job]:
    """Yield the jobs that have to run: those without a result, and with ``force_failed`` also those that failed."""
    for job in jobs:
        result = None if force else job.folder.result()
        if result is None or (force_failed and not result.reason.is_counted):
            yield job


def stored_results(jobs: Iterable[Job]) -> list[StoredResult | None]:
    """The stored result of each job."""
    return [job.folder.result() for job in jobs]


def _nothing_to_run(tasks: Iterable[str]) -> str:
    names = ", ".join(tasks)
    if not names:
        return "nothing to run: the manifests do not contain an Episode or an EpisodeSet"
    return (
        f"nothing to run: DebugTask {names} has no agent; add --agent NAME ({', '.join(agent_names())}; human is you at"
        " the keyboard), or an Episode that refers to the task"
    )


def _why_not_planned(resource: Episode | EpisodeSet) -> str | None:
    if resource.spec.cancel:
        return "cancelled"
    if resource.spec.suspend:
        return "suspended"
    return "its parallelism is 0" if isinstance(resource, EpisodeSet) and not resource.spec.parallelism else None


def _jobs(
    planned: Iterable[PlannedEpisode], item: Loaded, options: RunOptions, fingerprints: "_Fingerprints"
) -> Iterator[Job]:
    resource = item.resource
    assert not isinstance(resource, DebugTask | SandboxPool)
    is_set = isinstance(resource, EpisodeSet)
    cost_limit = resource.spec.cost_limit if isinstance(resource, EpisodeSet) else None
    base = Path(item.file).absolute().parent
    for one in planned:
        name, spec = one.episode.metadata.name, one.episode.spec
        if spec.agent is None:
            raise ManifestError(
                f"{item.file}: {resource.kind} {resource.metadata.name}: spec.agent is missing, so the episode waits"
                " for an external driver; name an agent to run it here: --agent NAME"
            )
        task = one.task
        source = fingerprints.of_source(task)
        moving = source + _files_fingerprint(spec.agent.parameters, base)
        yield Job(
            namespace=one.episode.metadata.namespace or "local",
            episode=name,
            sample=one.sample,
            arm=one.arm,
            task=task,
            task_digest=_combine(digest(task, None), source),
            agent=with_cost_limit(spec.agent, cost_limit),
            spec=spec,
            digest=_combine(one.digest, moving),
            manifest=item.file if ":" in item.file else str(Path(item.file).absolute()),
            base=str(base),
            options=options,
            priority=resource.spec.priority or spec.priority,
            group=f"{item.file}#{resource.metadata.name}" if is_set else "",
            parallelism=resource.spec.parallelism if isinstance(resource, EpisodeSet) else None,
            max_failed=resource.spec.max_failed if isinstance(resource, EpisodeSet) else None,
            cost_limit=cost_limit,
        )


def _check_plugins(jobs: Iterable[Job]) -> None:
    agents: dict[str, type[BaseAgent]] = {}
    checked: set[bytes] = set()
    for job in jobs:
        if job.agent.name not in agents:
            agents[job.agent.name] = load_agent(job.agent.name)
        agent = agents[job.agent.name]
        tools = effective_tools(job.spec.tools, job.agent, agent)
        agent.check_files(job.agent.parameters, Path(job.base))
        key = msgspec.json.encode(tools)
        if key not in checked:
            load_tools(tools)
            checked.add(key)
    _check_models([job for job in jobs if agents[job.agent.name].uses_model])


def _check_models(jobs: Iterable[Job]) -> None:
    models = Models()
    for job in jobs:
        if job.agent.model is None:
            raise ManifestError(
                f"agent {job.agent.name} of episode {job.episode} needs a model: -p agent.model=NAME"
                " (dgym llm list shows those configured)"
            )
        catalog = models.catalog(job.options.llm_config)
        if not catalog.is_interactive(job.agent.model):
            catalog.settings(job.agent.model)
        if job.agent.cost_limit is not None:
            field, limit = f"agent.costLimit of {job.episode}", job.agent.cost_limit
            if job.cost_limit is not None:
                field, limit = f"costLimit of {job.group.rpartition('#')[2]}", job.cost_limit
            models.require_prices(job.agent.model, job.options.llm_config, field=field, limit=limit)


def any_interactive(jobs: Iterable[Job]) -> bool:
    """Whether any job has an agent or a model that is a person at the terminal."""
    models = Models()
    for name, model, config in {(job.agent.name, job.agent.model, job.options.llm_config) for job in jobs}:
        agent = load_agent(name)
        if agent.interactive:
            return True
        if agent.uses_model and model is not None and models.catalog(config).is_interactive(model):
            return True
    return False


def _combine(digest_text: str, fingerprint: str) -> str:
    """Combine ``digest_text`` with a fingerprint of files outside of the manifest, if there are any."""
    if not fingerprint:
        return digest_text
    return hashlib.sha256(f"{digest_text}{fingerprint}".encode()).hexdigest()[: len(digest_text)]


def task_digest(task: DebugTask) -> str:
    """A digest of the task alone. It covers the files of a local repository."""
    return _combine(digest(task, None), _Fingerprints().of_source(task))


class _Fingerprints:
    """Hashes of local repositories, because an edited repository is another task. Each is computed once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of_source(self, task: DebugTask) -> str:
        """The hash of the task's repository. Empty if the source is not a local path."""
        source = task.spec.source
        if source is None or source.local_path is None:
            return ""
        root = Path(source.local_path)
        if not root.is_dir():
            raise ManifestError(
                f"DebugTask {task.metadata.name}: spec.source.localPath: the directory {root} does not exist"
            )
        if source.local_path not in self._known:
            self._known[source.local_path] = _tree_hash(root)
        return self._known[source.local_path]


def _tree_hash(root: Path) -> str:
    total = hashlib.sha256()
    for name, entry in walk_repository(root):
        path = Path(entry.path)
        if entry.is_symlink():
            content = os.fsencode(path.readlink())
        elif entry.is_file(follow_symlinks=False):
            content = path.read_bytes()
        else:
            continue
        total.update(f"{name}\0{path.lstat().st_mode:o}\0{len(content)}\0".encode("utf-8", "surrogateescape"))
        total.update(content)
    return total.hexdigest()


def _files_fingerprint(parameters: Mapping[str, Any], base: Path) -> str:
    """A hash of the files that an agent's parameters refer to, because an edited walkthrough is another run."""
    hashes = ""
    for name, value in sorted(parameters.items()):
        if not isinstance(value, str) or not 0 < len(value) < 1024 or "\n" in value:
            continue
        for path in (base / Path(value), Path(value)):
            if path.is_file():
                hashes += f"{name}={hashlib.sha256(path.read_bytes()).hexdigest()};"
                break
    return hashes
