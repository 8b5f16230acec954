"""Sandboxes in docker or podman containers, with the task's image or dgym's default image."""

from dgym.sandbox.container._engine import DEFAULT_IMAGE, ORDER, Engine, EngineOutput, call, ensure_image, find_engine
from dgym.sandbox.container._process import LABEL, remove_abandoned_containers, remove_unused_locks
from dgym.sandbox.container._provider import ContainerProvider, choose_engine

__all__ = [
    "DEFAULT_IMAGE",
    "LABEL",
    "ORDER",
    "ContainerProvider",
    "Engine",
    "EngineOutput",
    "call",
    "choose_engine",
    "ensure_image",
    "find_engine",
    "remove_abandoned_containers",
    "remove_unused_locks",
]
