"""The end of an attempt, whoever tells of it: its reason, its message and its outcome."""

import msgspec

from dgym.api import TREATMENTS, EpisodeOutcome, Treatment
from dgym.wire import Outcome
from dgym.wire.termination import TerminationMessage
from dgym_operator.reconcile.conditions import fit

_COUNT_LIMIT = 2**53
_URI_LIMIT = 2048


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt is over. ``disruption``: by what befell the node, or by whoever took the pod off it."""

    reason: str
    message: str = ""
    outcome: EpisodeOutcome | None = None
    disruption: bool = False

    @property
    def treatment(self) -> Treatment:
        """What becomes of the episode; a reason that this version does not know ends it."""
        return TREATMENTS.get(self.reason, Treatment.TERMINAL)


def outcome_of(told: Outcome | TerminationMessage) -> EpisodeOutcome:
    """The outcome in the bounds that the API server holds a status to."""
    return EpisodeOutcome(
        resolved=told.resolved,
        score=_count(told.score),
        max_score=_count(told.max_score),
        steps=_count(told.steps),
        rewrites=_count(told.rewrites),
        input_tokens=_count(told.input_tokens),
        output_tokens=_count(told.output_tokens),
        result_uri=told.result_uri if len(told.result_uri) <= _URI_LIMIT else "",
        message=fit(told.message),
    )


def _count(number: int) -> int:
    return max(0, min(number, _COUNT_LIMIT))
