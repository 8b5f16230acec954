"""What a sandbox must know of a task before it starts. Pure."""

from dgym.api import DebugTask
from dgym.api.quantities import parse_quantity
from dgym.sandbox import Limits, SandboxSpec


def sandbox_spec(task: DebugTask, python: str | None) -> SandboxSpec:
    """The specification of the task's sandboxes; ``python`` runs its programs, None: what the sandbox has."""
    spec = task.spec
    memory = spec.resources.limits.get("memory")
    return SandboxSpec(
        workspace=spec.working_directory,
        environment={variable.name: variable.value for variable in spec.env},
        activate=spec.activate,
        interpreter=spec.interpreter,
        python=python,
        limits=Limits() if memory is None else Limits(memory_bytes=int(parse_quantity(memory))),
    )
