"""``dgym-operator render``: the pods of episodes as YAML, without a cluster."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from dgym.api import (
    DebugTask,
    DebugTaskSpec,
    Episode,
    EpisodeSet,
    EpisodeSpec,
    InlineFile,
    ObjectMeta,
    PlannedEpisode,
    SourceSpec,
    expand,
    find_task,
    load,
)
from dgym.errors import ManifestError
from dgym_operator.render.context import PodContext, token_digests
from dgym_operator.render.renderer import Renderer
from dgym_operator.settings import Settings

_KEY = b"not the cluster's"
_UID = "00000000-0000-0000-0000-000000000000"
_OVERHEAD_SECONDS = 3600


def render_command(
    paths: Sequence[Path],
    *,
    settings: Settings,
    task_paths: Sequence[Path] = (),
    template: str | None = None,
    namespace: str = "default",
) -> str:
    """The pod of the first attempt of every episode in the files (of a set, its first), a YAML document each.

    Args:
        paths: Files with Episodes or EpisodeSets; DebugTasks in them are known too.
        settings: Of the installation.
        task_paths: Files with the DebugTasks that they refer to.
        template: Takes precedence over the episode's and the task's.
        namespace: Of manifests that name none.

    Raises:
        ManifestError: A file is wrong, or none holds an episode.
        TemplateError: The template is.
    """
    resources = [resource for path in (*paths, *task_paths) for resource in load(path)]
    tasks = [resource for resource in resources if isinstance(resource, DebugTask)]
    renderer = Renderer(directory=settings.pod_templates_directory)
    pods = []
    for planned in _planned(resources, tasks):
        name = template or planned.episode.spec.pod_template or planned.task.spec.pod_template
        name = name or settings.default_pod_template
        pods.append(renderer.render(name, _context(planned, settings, namespace)))
    if not pods:
        raise ManifestError(f"{', '.join(map(str, paths))}: holds no Episode and no EpisodeSet; give one")
    text: str = yaml.dump_all(pods, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def check_templates(settings: Settings) -> None:
    """Render every template for two tasks, one whose repository is delivered and one whose image holds it.

    Raises:
        TemplateError: A template does not parse or gives no pod, or ``default_pod_template`` names none.
    """
    renderer = Renderer(directory=settings.pod_templates_directory)
    settings = settings.model_copy(update={"sandbox_image": settings.sandbox_image or "sandbox"})
    source = SourceSpec(files=(InlineFile(path="example.py", content=""),))
    for name in (settings.default_pod_template, *renderer.templates):
        for spec in (DebugTaskSpec(source=source), DebugTaskSpec()):
            episode = Episode(metadata=ObjectMeta(name="example"), spec=EpisodeSpec(task=spec))
            task = DebugTask(metadata=ObjectMeta(name="example"), spec=spec)
            renderer.render(name, _context(PlannedEpisode(episode=episode, task=task), settings, "default"))


class _Dumper(yaml.SafeDumper):
    """Without anchors: the same list twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        """Always."""
        del data
        return True


def _planned(resources: Iterable[Any], tasks: Sequence[DebugTask]) -> Iterator[PlannedEpisode]:
    for resource in resources:
        if isinstance(resource, Episode):
            yield PlannedEpisode(episode=resource, task=find_task(resource, tasks))
        elif isinstance(resource, EpisodeSet):
            yield expand(resource, tasks)[0]


def _context(planned: PlannedEpisode, settings: Settings, namespace: str) -> PodContext:
    episode = planned.episode
    spec = episode.spec
    return PodContext(
        name=f"{episode.metadata.name}-1",
        namespace=episode.metadata.namespace or namespace,
        episode=episode.metadata.name,
        episode_uid=_UID,
        attempt=1,
        task=planned.task.spec,
        delivered=planned.task.spec.source is not None,
        # Of a key that no cluster has: what a token's digest looks like, and no token.
        digests=token_digests(_KEY, episode_uid=_UID, attempt=1),
        labels=dict(episode.metadata.labels),
        overrides=spec.pod_overrides,
        active_deadline_seconds=spec.start_timeout_seconds + spec.active_deadline_seconds + _OVERHEAD_SECONDS,
        settings=settings,
    )
