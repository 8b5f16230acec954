"""One episode to run on this machine: its task, agent and limits, and where its attempts are recorded."""

from pathlib import Path

import msgspec

from dgym.agents import Agent
from dgym.api import AgentSpec, DebugTask, EpisodeSpec, ToolSpec
from dgym.results import DirectoryStore, EpisodeFolder, Record, StoredResult, TrajectoryHeader, episode_path
from dgym.wire import Result
from dgym.wire.provenance import Provenance


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One episode to run.

    ``digest`` covers task, agent and sample. ``group`` is the EpisodeSet it belongs to, whose ``parallelism`` and
    ``max_failed`` and ``cost_limit`` bound the group as a whole, and ``arm`` its arm, empty in a set without arms.
    ``manifest`` is where the episode was found, ``base`` the directory that relative paths in it start from.
    ``llm_config`` is the file of models, None the user's own; ``verbose``: every step is reported in words.
    """

    namespace: str
    episode: str
    sample: int
    arm: str = ""
    task: DebugTask
    task_digest: str
    agent: AgentSpec
    spec: EpisodeSpec
    digest: str
    manifest: str
    base: str
    results: str
    sandbox: str = "auto"
    engine: str = "auto"
    python: str | None = None
    build_requirements: bool = False
    priority: int = 0
    group: str = ""
    parallelism: int | None = None
    max_failed: int | None = None
    cost_limit: str | None = None
    llm_config: str | None = None
    verbose: bool = False

    @property
    def seed(self) -> int | None:
        """The seed of this sample: samples of a task differ, and each is the same in every run."""
        return None if self.agent.seed is None else self.agent.seed + self.sample

    @property
    def folder(self) -> EpisodeFolder:
        """Where this episode's attempts are stored."""
        return EpisodeFolder(Path(self.results) / self.results_path)

    @property
    def results_path(self) -> str:
        """The folder of this episode, from the root of the results store."""
        return episode_path(self.namespace, self.episode, self.digest)

    def new_record(self) -> Record:
        """The record of a new attempt."""
        return Record.new(Path(self.results), self.results_path)

    def record_of(self, attempt: int) -> Record:
        """The record of an attempt that was made before."""
        return Record(DirectoryStore(Path(self.results), local=True), f"{self.results_path}/{attempt}")

    def describe(self, result: Result, *, start_time: str = "", provenance: Provenance | None = None) -> StoredResult:
        """``result`` with what identifies this episode."""
        return StoredResult(
            **{name: getattr(result, name) for name in Result.__struct_fields__},
            namespace=self.namespace,
            episode=self.episode,
            task=self.task.metadata.name,
            agent=self.agent.name,
            model=self.agent.model or "",
            sample=self.sample,
            arm=self.arm,
            task_labels=self.task.metadata.labels,
            digest=self.digest,
            start_time=start_time,
            provenance=provenance,
        )

    def header(self, *, attempt: int, start_time: str, version: str, tools: tuple[str, ...]) -> TrajectoryHeader:
        """The first line of this episode's trajectory; ``tools`` are the effective ones."""
        return TrajectoryHeader(
            dgym_version=version,
            namespace=self.namespace,
            episode=self.episode,
            sample=self.sample,
            arm=self.arm,
            attempt=attempt,
            task=self.task.metadata.name,
            task_digest=self.task_digest,
            entrypoint=self.task.spec.entrypoint,
            digest=self.digest,
            manifest=self.manifest,
            agent=msgspec.to_builtins(self.agent),
            tools=tools,
            sandbox=self.sandbox,
            start_time=start_time,
        )


def effective_tools(
    tools: tuple[str | ToolSpec, ...], spec: AgentSpec, agent: type[Agent]
) -> tuple[str | ToolSpec, ...]:
    """The episode's tools, else the agent's default ones, without those the agent bans, with its options.

    Raises:
        ManifestError: The agent's parameters are wrong.
    """
    wanted: tuple[str | ToolSpec, ...] = tools or agent.default_tools
    names = (tool if isinstance(tool, str) else tool.name for tool in wanted)
    allowed = tuple(tool for tool, name in zip(wanted, names, strict=True) if name not in agent.banned_tools)
    return agent.arrange_tools(allowed, spec.parameters)
