"""Who may call what: three tokens, of which the pod knows digests alone, and assignments that supersede each other."""

import hmac
from collections.abc import Mapping

from dgym.sidecar.failures import CallError
from dgym.wire.http import EPOCH_HEADER, Role
from dgym.wire.http_errors import ErrorCode
from dgym.wire.http_tokens import token_digest

_SCHEME = "bearer "
_HIGHEST = 2**53


class Access:
    """Checks every call before anything else is done with it."""

    def __init__(self, digests: Mapping[Role, str]) -> None:
        self._digests = dict(digests)
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """The highest epoch that was seen."""
        return self._epoch

    def authorize(self, headers: Mapping[str, str], needed: Role) -> int:
        """The caller's epoch, if it has the token of the role.

        Raises:
            CallError: unauthenticated, forbidden or superseded.
        """
        role = self._role(headers.get("Authorization", ""))
        if role is not needed:
            raise CallError(ErrorCode.FORBIDDEN, f"this call needs the token of the role {needed}, not of {role}")
        if needed is Role.OPERATE:
            return self._epoch
        epoch = _read_epoch(headers.get(EPOCH_HEADER, "0"))
        self.check_current(epoch)
        self._epoch = epoch
        return epoch

    def check_current(self, epoch: int) -> None:
        """Refuse a caller whose assignment was given to another, also while its call ran."""
        if epoch < self._epoch:
            raise CallError(
                ErrorCode.SUPERSEDED, f"epoch {epoch} is superseded by {self._epoch}: another driver has this episode"
            )

    def _role(self, authorization: str) -> Role:
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise CallError(ErrorCode.UNAUTHENTICATED, "a bearer token is needed")
        digest = token_digest(authorization[len(_SCHEME) :].strip())
        # All are compared, each in constant time: how long it takes says nothing about any of them.
        matching = [role for role, known in self._digests.items() if hmac.compare_digest(known, digest)]
        if not matching:
            raise CallError(ErrorCode.UNAUTHENTICATED, "the token is not one of this attempt")
        return matching[0]


def _read_epoch(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 16 or int(text) > _HIGHEST:
        raise CallError(ErrorCode.INVALID_ARGUMENT, f"{EPOCH_HEADER} must be a whole number")
    return int(text)
