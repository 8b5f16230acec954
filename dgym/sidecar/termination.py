"""The sidecar's termination message: how the attempt ended, or where it was when the sidecar was killed.

The kubelet reads it once the container has ended, however that came about. So it is written at the beginning and the
end of each step, and is the word of a sidecar that cannot be asked any more.
"""

import logging
import os

import msgspec

from dgym.errors import InfrastructureError, SandboxLost, SandboxStartFailed
from dgym.sidecar.attempt import Attempt
from dgym.sidecar.settings import Settings
from dgym.wire import EndReason
from dgym.wire.http import Usage
from dgym.wire.termination import TerminationMessage, encode_termination, with_verdict

_log = logging.getLogger("dgym.sidecar")


class TerminationLog:
    """The file that the kubelet reads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._written = b""
        self._failure = ""

    def record(self, attempt: Attempt) -> None:
        """Write the message of the attempt, if it has changed."""
        message = final_message(self._settings, attempt)
        data = encode_termination(message) if message is not None else b""
        if data in (b"", self._written.rstrip(b" ")):
            return
        # A process that is killed within the write leaves the old message or the new one: neither is cut first.
        data = data.ljust(len(self._written))
        try:
            _overwrite(self._settings.termination_log, data)
        except OSError as error:
            if str(error) != self._failure:
                _log.error("the termination message could not be written: %s", error)
            self._failure = str(error)
        else:
            self._written, self._failure = data, ""


def final_message(settings: Settings, attempt: Attempt) -> TerminationMessage | None:
    """The termination message; None while there is nothing to say.

    A lost sandbox is no reason: another pod resumes the episode.
    """
    session, release, evidence = attempt.session, attempt.release, attempt.evidence
    if session is None and release is None and attempt.result is None:
        return None
    usage = session.usage if session is not None else Usage()
    message = TerminationMessage(
        episode_uid=settings.episode_uid,
        attempt=settings.attempt,
        steps=session.steps if session is not None else 0,
        rewrites=session.rewrites if session is not None else 0,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        price=usage.price,
        elapsed_seconds=evidence.elapsed_seconds,
        step_in_flight=evidence.step_in_flight,
        poisoned_step=evidence.poisoned_step,
        told_to_end=evidence.told_to_end,
        result_uri=release.result_uri if release is not None else "",
    )
    if attempt.result is not None:
        return with_verdict(message, attempt.result)
    reason, text = _failure(attempt)
    return msgspec.structs.replace(message, reason=reason, message=text)


def _failure(attempt: Attempt) -> tuple[EndReason | None, str]:
    failure, release = attempt.failure, attempt.release
    if failure is not None and not isinstance(failure, SandboxLost | SandboxStartFailed):
        reason = failure.reason if isinstance(failure, InfrastructureError) else EndReason.INTERNAL_ERROR
        return EndReason(reason), str(failure)
    if release is not None and release.reason is not None:
        return release.reason, release.message
    return None, ""


def _overwrite(path: os.PathLike[str], data: bytes) -> None:
    """Not by renaming: the kubelet has mounted this very file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
