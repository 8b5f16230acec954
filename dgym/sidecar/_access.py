"""Authentication and authorization of calls to the sidecar, for three roles.

Programs in the sandbox share the pod's network. They can send requests, and after they have killed the sidecar they can
answer on its port. Therefore requests and answers are signed, each request is accepted only once, and a newer
assignment supersedes an older one. The number (epoch) of an assignment is valid only with the operator's signature, so
that an agent pod or driver cannot use a higher number than it was given.
"""

import heapq
import time
from collections.abc import Mapping, Sequence

import msgspec

from dgym.wire.http import EPOCH_HEADER, IDEMPOTENCY_HEADER, PROXIED_AUTHORIZATION_HEADER, CallError, ErrorCode, Role
from dgym.wire.signing import WINDOW_SECONDS, SignedRequest, read_epoch, read_request

_NONCES = 16_384
"""Maximum number of nonces that are stored for each role."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The role of a caller, and the epoch of its assignment; None if it has no assignment."""

    role: Role
    epoch: int | None


class Access:
    """Checks calls before they are served.

    Args:
        digests: SHA-256 of the token of each role.
    """

    def __init__(self, digests: Mapping[Role, str]) -> None:
        self._digests = dict(digests)
        self._nonces = {role: _Nonces() for role in Role}
        self._epoch = 0
        self._assigned: set[Role] = set()
        self._without_epoch = {Role.OPERATE}

    def identify(self, method: str, target: str, headers: Mapping[str, str]) -> SignedRequest:
        """Check that a request is signed with the key of a role, is recent, and was not received before.

        Raises:
            CallError: UNAUTHENTICATED.
        """
        signed = read_request(
            self._digests,
            headers.get(PROXIED_AUTHORIZATION_HEADER) or headers.get("Authorization", ""),
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

    def authorize(self, role: Role, headers: Mapping[str, str], allowed: Sequence[str]) -> Caller:
        """Check that the role of the caller may make the call, and that its assignment is current.

        Raises:
            CallError: FORBIDDEN, SUPERSEDED, or INVALID_ARGUMENT for an invalid epoch.
        """
        if role not in allowed:
            needed = " or ".join(allowed)
            raise CallError(ErrorCode.FORBIDDEN, f"this call requires the token of the role {needed}, not of {role}")
        if role in self._without_epoch or EPOCH_HEADER not in headers:
            caller = Caller(role=role, epoch=None)
        else:
            caller = Caller(role=role, epoch=self._read_epoch(role, headers[EPOCH_HEADER]))
        self.check_current(caller)
        if caller.epoch is not None:
            self._epoch = caller.epoch
            self._assigned.add(role)
        return caller

    def check_current(self, caller: Caller) -> None:
        """Check that the caller's assignment is current. Called again after the call, which may have taken long.

        A caller without an assignment is an external driver. An assignment of its role supersedes it.

        Raises:
            CallError: SUPERSEDED.
        """
        superseded = caller.role in self._assigned if caller.epoch is None else caller.epoch < self._epoch
        if superseded:
            which = "a call without an epoch" if caller.epoch is None else f"epoch {caller.epoch}"
            message = f"{which} is superseded by {self._epoch}: another driver has this episode"
            raise CallError(ErrorCode.SUPERSEDED, message)

    def _read_epoch(self, role: Role, text: str) -> int:
        try:
            epoch = read_epoch(self._digests[Role.OPERATE], role, text)
        except ValueError as error:
            raise CallError(ErrorCode.INVALID_ARGUMENT, f"{EPOCH_HEADER}: {error}") from None
        if epoch is None:
            message = f"{EPOCH_HEADER}: the operator did not sign this epoch for the role {role}"
            raise CallError(ErrorCode.FORBIDDEN, message)
        return epoch

    def ignore_epochs(self, role: Role) -> None:
        """Ignore epochs of this role from now on.

        Otherwise an external driver with an epoch could supersede the agent pod that stores its steps.
        """
        self._without_epoch.add(role)

    def has_newer(self, epoch: int) -> bool:
        """Return whether a caller with a later assignment than ``epoch`` has called."""
        return self._epoch > epoch


class _Nonces:
    """The nonces of one role's requests in the time window.

    If there are too many, the oldest are dropped, and all requests with their times are refused.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._oldest_first: list[tuple[int, str]] = []
        self._floor = 0

    def add(self, sent: int, nonce: str, now: float) -> bool:
        """Record a request. Returns False if it was received before or is so old that this is unknown."""
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
