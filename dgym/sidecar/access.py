"""Access to the calls: requests signed by three roles, each taken once, and assignments that supersede each other."""

import heapq
import time
from collections.abc import Mapping, Sequence

import msgspec

from dgym.sidecar.answers import CallError
from dgym.wire.http import EPOCH_HEADER, IDEMPOTENCY_HEADER, ErrorCode, Role
from dgym.wire.signing import WINDOW_SECONDS, SignedRequest, read_request

_HIGHEST = 2**53
_NONCES = 16_384
"""Remembered for each role."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The role of a caller, and the epoch of its assignment, if it has one."""

    role: Role
    epoch: int | None


class Access:
    """Checks every call before anything else is done with it."""

    def __init__(self, digests: Mapping[Role, str]) -> None:
        self._digests = dict(digests)
        self._nonces = {role: _Nonces() for role in Role}
        self._epoch = 0
        self._assigned: set[Role] = set()

    def identify(self, method: str, target: str, headers: Mapping[str, str]) -> SignedRequest:
        """The request, if it is signed with the key of a role and was not received before.

        Raises:
            CallError: unauthenticated.
        """
        signed = read_request(
            self._digests,
            headers.get("Authorization", ""),
            method,
            target,
            epoch=headers.get(EPOCH_HEADER, ""),
            reset_key=headers.get(IDEMPOTENCY_HEADER, ""),
        )
        if signed is None:
            raise CallError(ErrorCode.UNAUTHENTICATED, "the request is not signed with a token of this attempt")
        now = time.time()
        if abs(signed.time - now) > WINDOW_SECONDS:
            message = f"the clocks differ by {signed.time - now:.0f} s, more than {WINDOW_SECONDS} s"
            raise CallError(ErrorCode.UNAUTHENTICATED, message)
        if not self._nonces[signed.role].add(signed.time, signed.nonce, now):
            raise CallError(ErrorCode.UNAUTHENTICATED, "the request was received before")
        return signed

    def authorize(self, role: Role, headers: Mapping[str, str], allowed: Sequence[Role]) -> Caller:
        """The caller, if the call is one of its role's.

        Raises:
            CallError: forbidden or superseded.
        """
        if role not in allowed:
            needed = " or ".join(allowed)
            raise CallError(ErrorCode.FORBIDDEN, f"this call needs the token of the role {needed}, not of {role}")
        if role is Role.OPERATE or EPOCH_HEADER not in headers:
            caller = Caller(role=role, epoch=None)
        else:
            caller = Caller(role=role, epoch=_read_epoch(headers[EPOCH_HEADER]))
        self.check_current(caller)
        if caller.epoch is not None:
            self._epoch = caller.epoch
            self._assigned.add(role)
        return caller

    def check_current(self, caller: Caller) -> None:
        """Refuse a caller whose assignment was given to another, also while its call ran.

        A caller without an assignment drives from outside; an assignment for the same role supersedes it.
        """
        superseded = caller.role in self._assigned if caller.epoch is None else caller.epoch < self._epoch
        if superseded:
            which = "no epoch" if caller.epoch is None else f"epoch {caller.epoch}"
            message = f"{which} is superseded by {self._epoch}: another has this episode"
            raise CallError(ErrorCode.SUPERSEDED, message)

    def has_newer(self, epoch: int) -> bool:
        """Whether a later assignment than ``epoch`` has called."""
        return self._epoch > epoch


class _Nonces:
    """The requests of one role within the window; where there are too many, the oldest times are refused as a whole."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._oldest_first: list[tuple[int, str]] = []
        self._floor = 0

    def add(self, sent: int, nonce: str, now: float) -> bool:
        """Record a request; False: it was received before, or is too old to tell."""
        if sent < self._floor or nonce in self._known:
            return False
        self._known.add(nonce)
        heapq.heappush(self._oldest_first, (sent, nonce))
        while self._oldest_first and self._oldest_first[0][0] < now - WINDOW_SECONDS:
            self._forget()
        while len(self._known) > _NONCES:
            self._floor = max(self._floor, self._forget() + 1)
        return True

    def _forget(self) -> int:
        sent, nonce = heapq.heappop(self._oldest_first)
        self._known.discard(nonce)
        return sent


def _read_epoch(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 16 or int(text) > _HIGHEST:
        raise CallError(ErrorCode.INVALID_ARGUMENT, f"{EPOCH_HEADER} must be a whole number")
    return int(text)
