"""Where untrusted programs run: the protocol, the runner's client and the sandboxes of this machine."""

from dgym.sandbox.protocol import (
    DebugRequest,
    DebugResult,
    FileStat,
    Limits,
    ManifestEntry,
    RunResult,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
)

__all__ = [
    "DebugRequest",
    "DebugResult",
    "FileStat",
    "Limits",
    "ManifestEntry",
    "RunResult",
    "Sandbox",
    "SandboxProvider",
    "SandboxSpec",
]
