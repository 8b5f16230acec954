"""What a sandbox and the tools must know of a task. Pure."""

from dgym.api import DebugTask
from dgym.api.quantities import parse_quantity
from dgym.sandbox import Limits, SandboxSpec
from dgym.tools.context import ToolSettings


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


def tool_settings(task: DebugTask) -> ToolSettings:
    """What the tools must know of ``task``."""
    spec = task.spec
    return ToolSettings(
        entrypoint=spec.entrypoint,
        debug_entrypoint=spec.debug_entrypoint,
        entrypoint_timeout_seconds=float(spec.entrypoint_timeout_seconds),
        scored_tests=spec.scoring.fail_to_pass + spec.scoring.pass_to_pass,
        parser=spec.scoring.parser,
        interpreter=spec.interpreter,
    )
