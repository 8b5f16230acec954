"""Access to the calls: three tokens, of which the pod has digests alone, and assignments that supersede each other."""

import hmac
from collections.abc import Mapping, Sequence

import msgspec

from dgym.sidecar.answers import CallError
from dgym.wire.http import EPOCH_HEADER, ErrorCode, Role, token_digest

_SCHEME = "bearer "
_HIGHEST = 2**53


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The role of a caller, and the epoch of its assignment, if it has one."""

    role: Role
    epoch: int | None


class Access:
    """Checks every call before anything else is done with it."""

    def __init__(self, digests: Mapping[Role, str]) -> None:
        self._digests = dict(digests)
        self._epoch = 0
        self._assigned: set[Role] = set()

    def authorize(self, headers: Mapping[str, str], allowed: Sequence[Role]) -> Caller:
        """The caller, if it has the token of one of the roles.

        Raises:
            CallError: unauthenticated, forbidden or superseded.
        """
        role = self._role(headers.get("Authorization", ""))
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

    def _role(self, authorization: str) -> Role:
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise CallError(ErrorCode.UNAUTHENTICATED, "a bearer token is needed")
        digest = token_digest(authorization[len(_SCHEME) :].strip())
        # All are compared, each in constant time: the time it takes reveals nothing about any of them.
        matching = [role for role, known in self._digests.items() if hmac.compare_digest(known, digest)]
        if not matching:
            raise CallError(ErrorCode.UNAUTHENTICATED, "the token is not one of this attempt")
        return matching[0]


def _read_epoch(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 16 or int(text) > _HIGHEST:
        raise CallError(ErrorCode.INVALID_ARGUMENT, f"{EPOCH_HEADER} must be a whole number")
    return int(text)
