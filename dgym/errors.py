"""Every exception dgym raises on purpose, and the problems that a ``ManifestError`` lists.

::

    DgymError
    ├── ManifestError            a manifest, a value given with -p, or a task is wrong; the user repairs it
    │   └── ModelConfigError     llm.yaml is missing or wrong, or has no model of that name
    ├── ArgumentError            an argument of an environment has no valid value; a ValueError too
    ├── EpisodeOver              a step or reset after the episode's end (the driver's mistake)
    │   └── Superseded           another driver has the episode now; this one drops it
    ├── AccessRefused            the sidecar rejects the token, or its use for this call
    ├── ConflictError            a step number was reused with another call, or one was left out
    ├── PluginError              a tool or an agent cannot be found or loaded; named
    ├── PathError                a path is not one of the workspace
    ├── EditError                a range of lines that a file does not have
    ├── PatchError               a patch is malformed or does not apply
    ├── StoreUnavailable         the results store failed; a retry may help (dgym.results)
    ├── PersonLeft               the person who plays a model has left; the episode is cancelled
    └── InfrastructureError      never the agent's doing; ``reason`` is one of the reasons of ``Finished``
        ├── SandboxStartFailed   the sandbox did not come up
        ├── SandboxLost          the sandbox or its runner died while no step of the agent ran
        ├── SourceFailed         the repository could not be obtained
        ├── SetupFailed          ``setupCommands``, ``activate`` or ``requirements`` failed, or the tests cannot run
        ├── VerifierFailed       scoring could not run
        └── ModelError           the model did not answer, and retries did not help
            ├── ModelUnavailable        its provider is out, limits the rate or has no quota left; it passes
            ├── ModelMisconfigured      a wrong key, model or parameter: no further try can succeed
            ├── ContextLengthExceeded   the messages are too long for it; agents trim them and ask again
            └── ContentFiltered         its provider refuses the messages, or filtered every reply

What a *tool* cannot do is not an exception of this tree: it is an observation (see ``dgym.ToolError``),
because infrastructure faults and tool failures are never confused.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple


class DgymError(Exception):
    """Base of all exceptions of dgym."""


class ManifestError(DgymError):
    """A manifest or an override is wrong; the message names file, document, field, value and remedy."""


class ArgumentError(DgymError, ValueError):
    """An argument of an environment has no valid value; the message names argument, value and valid values."""


class ModelConfigError(ManifestError):
    """The configuration of models is missing or wrong; the message names file, field and remedy, never a key."""


class PersonLeft(DgymError):
    """The person who plays a model has left; the agent ends the episode as cancelled."""


class EpisodeOver(DgymError):
    """The episode has ended; call ``reset()`` for a new one."""


class Superseded(EpisodeOver):
    """The episode was assigned to another driver, under a higher epoch; this one drops it."""


class AccessRefused(DgymError):
    """The sidecar of an episode rejects the token, or its use for this call."""


class ConflictError(DgymError):
    """A step number was reused with another call, or a number was left out."""


class PluginError(DgymError):
    """A tool or an agent of that name does not exist or cannot be loaded."""


class PathError(DgymError):
    """A path is empty, malformed or outside the workspace."""


class EditError(DgymError):
    """A range of lines does not exist, or new text cannot be written in the file's encoding."""


class PatchError(DgymError):
    """A patch is malformed or does not apply; the message names file, hunk and line of the patch."""


class InfrastructureError(DgymError):
    """Something that is not the agent's doing went wrong; ``reason`` is the reason of ``Finished``."""

    reason: ClassVar[str] = "InternalError"


class SandboxStartFailed(InfrastructureError):
    """The sandbox did not come up."""

    reason = "SandboxStartFailed"


class SandboxLost(InfrastructureError):
    """The sandbox or its runner is gone."""

    reason = "SandboxLost"


class RunnerFailed(SandboxLost):
    """The runner failed inside, as it does once a program has taken its memory or its descriptors away."""


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
    """The model did not answer, and retries did not help; the message gives cause and remedy."""

    reason = "ModelError"


class ModelUnavailable(ModelError):
    """The provider of the model is out, limits the rate or reports no quota. It passes without a change here."""


class ModelMisconfigured(ModelError):
    """The provider refuses the key, the model or the request: another try would fail in the same way."""


class ContextLengthExceeded(ModelError):
    """The messages are too long for the model. ``limit`` is its limit in tokens where the provider named it."""

    def __init__(self, message: str, *, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit


class ContentFiltered(ModelError):
    """The provider's content filter refused the messages, or every reply to them."""


FieldPath = tuple[str | int, ...]


class Problem(NamedTuple):
    """One fault of a manifest: its field, a message with the value and, after a semicolon, the remedy, and its line."""

    path: FieldPath
    message: str
    line: int | None = None


def render_path(path: Sequence[str | int]) -> str:
    """``spec.tools[0].name``; keys that hold dots or slashes are bracketed: ``metadata.labels["dgym.dev/set"]``."""
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
    """The offending value, short enough for a line of an error message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant; None when none is near."""
    import difflib

    folded = {name.replace("_", "").replace("-", "").lower(): name for name in known}
    matches = difflib.get_close_matches(word.replace("_", "").replace("-", "").lower(), folded, n=1, cutoff=0.65)
    return folded[matches[0]] if matches else None


def describe(problem: Problem, where: str) -> str:
    """One line: place, line number, field, fault and remedy."""
    place = where if problem.line is None else f"{where}, line {problem.line}"
    field = render_path(problem.path)
    return f"{place}: {field}: {problem.message}" if field else f"{place}: {problem.message}"


def error_of(lines: Sequence[str]) -> ManifestError:
    """All faults in one exception."""
    if len(lines) == 1:
        return ManifestError(lines[0])
    return ManifestError("\n  ".join([f"{len(lines)} problems:", *lines]))
