"""What a pod that the API server did not create means for its episode. Pure.

A cause that passes by itself is waited for: an overloaded server, a conflict with another writer, an admission plugin
whose caches lag, a default that an administrator is about to correct. Only what would be refused again in an hour is
final. Causes of 403 and 422 differ in the texts of the API server alone.
"""

from typing import NamedTuple

from dgym.kube import ApiError, BadRequest, Forbidden, Invalid, NotFound
from dgym.wire.messages import EndReason

_LAGGING = (
    "status unknown for quota",
    "error looking up service account",
    "not yet ready to handle request",
)
"""Admission plugins that have not seen an object yet that is about to be there."""
_RBAC = " cannot "
_LIMIT_BELOW_REQUEST = ("must be less than or equal to ", " limit")
_TOO_LARGE = 413


class Refusal(NamedTuple):
    """Why there is no pod.

    ``passes``: the cause passes by itself, so that the pod is tried again; ``reason`` is then the end of an episode
    that has waited for too long.
    """

    reason: EndReason
    message: str
    passes: bool = False
    retry_after: float | None = None


def find_refusal(error: ApiError) -> Refusal | None:
    """The refusal behind an error of creating a pod, or its namespace's policy; None: its namespace is going."""
    if isinstance(error, NotFound):
        return None
    if isinstance(error, Forbidden):
        return None if error.namespace_terminating else _forbidden(error)
    if isinstance(error, Invalid) and _is_limited_by_default(error):
        message = f"{error.message}; a LimitRange's default limit is below the request: change either"
        return Refusal(EndReason.POD_REJECTED, message, passes=True)
    if isinstance(error, Invalid | BadRequest) or error.status == _TOO_LARGE:
        return Refusal(EndReason.POD_REJECTED, error.message)
    return Refusal(EndReason.INTERNAL_ERROR, str(error), passes=True, retry_after=error.retry_after)


def _forbidden(error: Forbidden) -> Refusal:
    if error.quota:
        return Refusal(EndReason.QUOTA_EXCEEDED, error.message, passes=True)
    if _RBAC in error.message and "User " in error.message:
        # The installation lacks a right, which is no fault of the episode's and may be granted at any time.
        return Refusal(EndReason.INTERNAL_ERROR, error.message, passes=True)
    lagging = any(text in error.message for text in _LAGGING)
    return Refusal(EndReason.POD_REJECTED, error.message, passes=lagging)


def _is_limited_by_default(error: Invalid) -> bool:
    """Whether only requests above limits are wrong: dgym renders none, so that a LimitRange has put those limits."""
    return bool(error.causes) and all(
        cause.field.endswith(".resources.requests") and all(text in cause.message for text in _LIMIT_BELOW_REQUEST)
        for cause in error.causes
    )
