"""The Episode that a set makes for an index."""

import msgspec

from dgym.api import API_VERSION, DebugTask, DebugTaskSpec, Episode, EpisodeSet, LabelSelector, ObjectMeta
from dgym.api import OwnerReference as Owner
from dgym.api.labels import INDEX, SAMPLE, TASK_UID
from dgym.api.planning import expand
from dgym_operator.reconcile.plan import CreateEpisode
from dgym_operator.reconcile.views import EpisodeSetView


def child_manifest(episode_set: EpisodeSetView, create: CreateEpisode) -> Episode:
    """The Episode as a local run of the set's manifest would plan it, controlled by the set."""
    metadata, spec = episode_set.metadata, episode_set.spec
    alone = EpisodeSet(
        metadata=ObjectMeta(name=metadata.name, namespace=metadata.namespace or None, labels=metadata.labels),
        spec=msgspec.structs.replace(spec, tasks=(), task_selector=LabelSelector(), samples=1),
    )
    task = DebugTask(metadata=ObjectMeta(name=create.task), spec=DebugTaskSpec())
    planned = expand(alone, [task])[0].episode
    owner = Owner(api_version=API_VERSION, kind="EpisodeSet", name=metadata.name, uid=metadata.uid, controller=True)
    marks = {INDEX: str(create.index), SAMPLE: str(create.sample), TASK_UID: create.task_uid}
    return msgspec.structs.replace(
        planned,
        metadata=msgspec.structs.replace(
            planned.metadata,
            name=create.name,
            labels={**planned.metadata.labels, **marks},
            owner_references=(owner,),
        ),
        spec=msgspec.structs.replace(planned.spec, priority=spec.priority or planned.spec.priority),
    )
