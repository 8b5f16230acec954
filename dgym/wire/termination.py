"""The termination message of a sidecar's container, from which the operator reads how the attempt ended. Pure.

The sidecar writes it at each step, so that one that is killed leaves its clock and the step that it was executing; a
verdict takes its place. The message is short, because the kubelet silently truncates longer ones. Its checksum keeps a
truncated or foreign message from being believed. Patch, log and trajectory are in the results store.
"""

import hashlib

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.wire.messages import EndReason, Result

TERMINATION_LIMIT = 1024
"""Bytes of the encoded message."""
_URI_LIMIT = 400
_TEXT_LIMIT = 480
_CUT = " … "


class TerminationMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How an attempt ended, or where it was when its sidecar ended.

    Attributes:
        reason: Of the verdict, or of a failure that will not pass; None: there was neither when the sidecar ended.
        elapsed_seconds: How long the episode's deadline has run in this attempt.
        step_in_flight: The step that was being executed.
        poisoned_step: The step under which the sandbox died by itself.
        told_to_end: Whether the sidecar was told to end: the pod is deleted, or its node shuts down.
        message: For people; cut to fit.
    """

    version: int = 1
    episode_uid: str = msgspec.field(default="", name="episodeUID")
    attempt: int = 0
    reason: EndReason | None = None
    resolved: bool = False
    score: int = 0
    max_score: int = 0
    steps: int = 0
    rewrites: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    price: str | None = None
    elapsed_seconds: float = 0.0
    step_in_flight: int | None = None
    poisoned_step: int | None = None
    told_to_end: bool = False
    result_uri: str = msgspec.field(default="", name="resultURI")
    message: str = ""
    checksum: str = ""


def with_verdict(message: TerminationMessage, result: Result) -> TerminationMessage:
    """``message`` with the verdict of the attempt."""
    return msgspec.structs.replace(
        message,
        reason=result.reason,
        resolved=result.resolved,
        score=result.score,
        max_score=result.max_score,
        steps=result.steps,
        rewrites=result.rewrites,
        input_tokens=result.input_tokens,
        output_tokens=result.output_tokens,
        price=result.price,
        message=result.message,
    )


def encode_termination(message: TerminationMessage) -> bytes:
    """At most ``TERMINATION_LIMIT`` bytes of JSON with its checksum.

    An address that is too long is left out, since half of one leads nowhere; the text loses its middle.
    """
    uri = message.result_uri if len(message.result_uri.encode()) <= _URI_LIMIT else ""
    message = msgspec.structs.replace(message, result_uri=uri)
    characters = _TEXT_LIMIT
    while True:
        text = _shortened(message.message, characters)
        data = _with_checksum(msgspec.structs.replace(message, message=text))
        if len(data) <= TERMINATION_LIMIT or not text:
            return data
        characters = len(text) - max(1, (len(data) - TERMINATION_LIMIT) // 6)


def _shortened(text: str, characters: int) -> str:
    """``text`` without its middle: what failed stands first, and the cause last."""
    if len(text) <= characters:
        return text
    half = max(0, characters - len(_CUT)) // 2
    return f"{text[:half]}{_CUT}{text[-half:]}" if half else ""


def decode_termination(data: bytes | str) -> TerminationMessage | None:
    """The message, or None when it is not whole."""
    try:
        message = msgspec.json.decode(data, type=TerminationMessage)
    except DECODE_ERRORS:
        return None
    return message if message.checksum and message.checksum == _checksum(message) else None


def _with_checksum(message: TerminationMessage) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(message, checksum=_checksum(message)))


def _checksum(message: TerminationMessage) -> str:
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(message, checksum=""))).hexdigest()[:16]
