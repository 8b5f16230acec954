"""The difference between two statuses as a JSON merge patch. Pure."""

from typing import Any

import msgspec

from dgym.api import EpisodeStatus
from dgym_operator.reconcile.conditions import state_of
from dgym_operator.reconcile.views import EpisodeView


def episode_patch(episode: EpisodeView, status: EpisodeStatus) -> dict[str, Any] | None:
    """What gives the Episode that status, with the ``state`` that follows from it; None: the status is the same."""
    if status == episode.status:
        return None
    status = msgspec.structs.replace(status, state=state_of(status).value)
    return status_patch(episode.status, status, episode.metadata.resource_version)


def status_patch(old: msgspec.Struct, new: msgspec.Struct, resource_version: str) -> dict[str, Any] | None:
    """What turns ``old`` into ``new``, on condition that nothing has changed since; None: they are the same."""
    difference = merge_patch(msgspec.to_builtins(old), msgspec.to_builtins(new))
    if not difference:
        return None
    return {"metadata": {"resourceVersion": resource_version}, "status": difference}


def merge_patch(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Fields that are new or other; those that are gone as None; lists are replaced as a whole."""
    patch: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = merge_patch(before, value)
            if inner:
                patch[name] = inner
        elif name not in old or before != value:
            patch[name] = value
    return patch
