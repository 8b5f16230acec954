"""The exceptions of dgym, and the problems that a ``ManifestError`` lists.

::

    DgymError
    ├── ManifestError            a manifest, a value given with -p, or a task is invalid; the user must correct it
    │   └── ModelConfigError     llm.yaml is missing or invalid, or has no model of that name
    ├── ArgumentError            an argument of an environment is invalid; also a ValueError
    ├── EpisodeOver              a step or reset after the end of the episode; an error of the driver
    │   └── Superseded           the episode was assigned to another driver
    ├── AccessRefused            the sidecar rejects the token, or its use for this call
    ├── ConflictError            a step number was reused for another call, or a number was skipped
    ├── PluginError              a tool or an agent cannot be found or loaded
    ├── PathError                a path is not a path of the workspace
    ├── EditError                a range of lines does not exist in a file
    ├── PatchError               a patch is malformed or does not apply
    ├── StoreUnavailable         the results store failed; a retry may help (dgym.results)
    ├── HumanQuit                the person who plays the model has left; the episode is cancelled
    └── InfrastructureError      not caused by the agent; ``reason`` is a reason of the condition ``Finished``
        ├── SandboxStartFailed   the sandbox did not start
        ├── SandboxLost          the sandbox or its runner died while no step of the agent ran
        ├── SourceFailed         the repository could not be obtained
        ├── SetupFailed          ``setupCommands``, ``activate`` or ``requirements`` failed, or the tests cannot run
        ├── VerifierFailed       scoring could not run
        └── ModelError           a request to the model failed, and retries did not help
            ├── ModelUnavailable        the provider is down, limits the rate or has no quota left; temporary
            ├── ModelMisconfigured      the key, model or request is invalid; retries cannot succeed
            ├── ContextLengthExceeded   the messages are too long; agents shorten them and try again
            └── ContentFiltered         the provider refuses the messages, or filtered every reply

A tool that fails does not raise an exception of this tree. It returns an observation (see ``dgym.ToolError``), so that
infrastructure errors and tool errors are always distinguished.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple


class DgymError(Exception):
    """Base class of all exceptions of dgym."""


class ManifestError(DgymError):
    """A manifest or an override is invalid. The message has the file, document, field, value and remedy."""


class ArgumentError(DgymError, ValueError):
    """An argument of an environment is invalid. The message has the argument, its value and the valid values."""


class ModelConfigError(ManifestError):
    """The model configuration is missing or invalid. The message has the file, field and remedy, but no API key."""


class HumanQuit(DgymError):
    """The person who plays the model has left. The agent ends the episode as cancelled."""


class EpisodeOver(DgymError):
    """The episode has ended. Call ``reset()`` to start a new one."""


class Superseded(EpisodeOver):
    """The episode was assigned to another driver with a higher epoch. This driver must stop driving it."""


class AccessRefused(DgymError):
    """The sidecar of an episode rejects the token, or its use for this call."""


class ConflictError(DgymError):
    """A step number was reused for another call, or a number was skipped."""


class PluginError(DgymError):
    """A tool or an agent of that name does not exist or cannot be loaded."""


class PathError(DgymError):
    """A path is empty, malformed or outside the workspace."""


class EditError(DgymError):
    """A range of lines does not exist, or new text cannot be written in the file's encoding."""


class PatchError(DgymError):
    """A patch is malformed or does not apply. The message has the file, hunk and line of the patch."""


class InfrastructureError(DgymError):
    """An error that the agent did not cause. ``reason`` is the reason of the condition ``Finished``."""

    reason: ClassVar[str] = "InternalError"


class SandboxStartFailed(InfrastructureError):
    """The sandbox did not start."""

    reason = "SandboxStartFailed"


class SandboxLost(InfrastructureError):
    """The sandbox or its runner is gone."""

    reason = "SandboxLost"


class RunnerFailed(SandboxLost):
    """The runner had an internal error, for example because a program used up its memory or descriptors."""


class SourceFailed(InfrastructureError):
    """The repository could not be obtained."""

    reason = "SourceFailed"


class SetupFailed(InfrastructureError):
    """``setupCommands``, ``activate`` or ``requirements`` failed, or the environment cannot run the task's tests."""

    reason = "SetupFailed"


class VerifierFailed(InfrastructureError):
    """Scoring could not run."""

    reason = "VerifierFailed"


class ModelError(InfrastructureError):
    """A request to the model failed, and retries did not help. The message has the cause and the remedy."""

    reason = "ModelError"


class ModelUnavailable(ModelError):
    """The provider of the model is down, limits the rate or reports an exceeded quota. The error is temporary."""


class ModelMisconfigured(ModelError):
    """The provider refuses the key, the model or the request, so that a retry would fail too."""


class ContextLengthExceeded(ModelError):
    """The messages are too long for the model. ``limit`` is the model's limit in tokens; None if unknown."""

    def __init__(self, message: str, *, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit


class ContentFiltered(ModelError):
    """The provider's content filter refused the messages or all replies."""


FieldPath = tuple[str | int, ...]


class Problem(NamedTuple):
    """One problem of a manifest.

    Attributes:
        path: The field.
        message: A message with the value and, after a semicolon, the remedy.
        line: Line in the file.
    """

    path: FieldPath
    message: str
    line: int | None = None


def render_path(path: Sequence[str | int]) -> str:
    """Format a field as ``spec.tools[0].name``. Other keys are in brackets: ``metadata.labels["dgym.dev/set"]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.replace("_", "").replace("-", "").isalnum():
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


def show(value: Any) -> str:
    """Return the ``repr`` of a value, shortened to fit into a line of an error message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most similar to ``word``; None if no word is similar enough."""
    import difflib

    folded = {name.replace("_", "").replace("-", "").lower(): name for name in known}
    matches = difflib.get_close_matches(word.replace("_", "").replace("-", "").lower(), folded, n=1, cutoff=0.65)
    return folded[matches[0]] if matches else None


def describe(problem: Problem, where: str) -> str:
    """Format a problem in one line: place, line number, field, message."""
    place = where if problem.line is None else f"{where}, line {problem.line}"
    field = render_path(problem.path)
    return f"{place}: {field}: {problem.message}" if field else f"{place}: {problem.message}"


def error_of(lines: Sequence[str]) -> ManifestError:
    """Combine the descriptions of problems in one exception."""
    if len(lines) == 1:
        return ManifestError(lines[0])
    return ManifestError("\n  ".join([f"{len(lines)} problems:", *lines]))
