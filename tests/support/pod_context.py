"""Contexts from which tests render sandbox pods."""

from typing import Any

import msgspec

from dgym.api import DebugTaskSpec
from dgym_operator.render import PodContext
from dgym_operator.settings import Settings


def pod_context(*, task: dict[str, Any] | None = None, **fields: Any) -> PodContext:
    """A context. ``task`` has fields of the task's spec, ``fields`` are fields of the context."""
    context = PodContext(
        name="fix-ledger-1",
        namespace="team",
        episode="fix-ledger",
        episode_uid="5e0c7f0e-0000-4000-8000-000000000001",
        attempt=1,
        task=DebugTaskSpec(**(task or {})),
        delivered=True,
        digests={"prepare": "a" * 64, "drive": "b" * 64, "operate": "c" * 64},
        active_deadline_seconds=7200,
        settings=Settings(sandbox_image="sandbox-python:1", sidecar_image="sidecar:1"),
    )
    return msgspec.structs.replace(context, **fields)
