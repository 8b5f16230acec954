"""Sandboxes in docker or podman containers, started from the task's own image or dgym's."""

from dgym.sandbox.container.command import LABEL
from dgym.sandbox.container.engine import DEFAULT_IMAGE, ORDER, Answer, Engine, call, ensure_image, find_engine
from dgym.sandbox.container.process import remove_abandoned_containers, remove_unused_locks
from dgym.sandbox.container.provider import ContainerProvider, choose_engine

__all__ = [
    "DEFAULT_IMAGE",
    "LABEL",
    "ORDER",
    "Answer",
    "ContainerProvider",
    "Engine",
    "call",
    "choose_engine",
    "ensure_image",
    "find_engine",
    "remove_abandoned_containers",
    "remove_unused_locks",
]
