"""Write down how the attempt ended where the kubelet looks for it."""

import logging
import os
from pathlib import Path

from dgym.errors import InfrastructureError, SandboxLost, SandboxStartFailed
from dgym.sidecar.attempt import Attempt
from dgym.sidecar.settings import Settings
from dgym.wire import EndReason
from dgym.wire.termination import TerminationMessage, encode_termination, termination_message

_log = logging.getLogger(__name__)


def write_ending(settings: Settings, attempt: Attempt) -> None:
    """Write the termination message, if there is anything final to say; again when more is known."""
    message = final_message(settings, attempt)
    if message is None:
        return
    try:
        _overwrite(settings.termination_log, encode_termination(message))
    except OSError as error:
        _log.error("the termination message could not be written: %s", error)


def final_message(settings: Settings, attempt: Attempt) -> TerminationMessage | None:
    """What is final about the attempt.

    A sandbox that was lost is not: another pod takes up the episode, and a message would stand in its way.
    """
    release = attempt.release
    uri = release.result_uri if release is not None else ""
    if attempt.result is not None:
        return termination_message(
            attempt.result, episode_uid=settings.episode_uid, attempt=settings.attempt, result_uri=uri
        )
    reason, text = None, ""
    failure = attempt.failure
    if failure is not None and not isinstance(failure, SandboxLost | SandboxStartFailed):
        reason = EndReason(failure.reason) if isinstance(failure, InfrastructureError) else EndReason.INTERNAL_ERROR
        text = str(failure)
    elif release is not None and release.reason is not None:
        reason, text = release.reason, release.message
    if reason is None:
        return None
    return TerminationMessage(
        episode_uid=settings.episode_uid,
        attempt=settings.attempt,
        reason=reason,
        steps=attempt.session.steps if attempt.session is not None else 0,
        rewrites=attempt.session.rewrites if attempt.session is not None else 0,
        input_tokens=attempt.usage.input_tokens,
        output_tokens=attempt.usage.output_tokens,
        poisoned_step=attempt.poisoned_step,
        result_uri=uri,
        message=text,
    )


def _overwrite(path: Path, data: bytes) -> None:
    """Not by renaming: the kubelet has mounted this very file. One write, so that it is never seen half."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
