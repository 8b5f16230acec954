"""How many writes that only show progress there may be: a share of the API server for the whole cluster.

They wait for nobody: what is not written now is decided again later, and by then may be written in one with more.
"""

from dgym.kube import Clock

_LONGEST_SECONDS = 60.0


class ProgressBudget:
    """So many writes a second, and those of one second saved up."""

    def __init__(self, qps: float, clock: Clock) -> None:
        self._qps = qps
        self._clock = clock
        self._saved = max(1.0, qps)
        self._counted = clock.monotonic()
        self._turn = clock.monotonic()

    def allows(self) -> bool:
        """Whether one may be made now; it counts as made."""
        now = self._clock.monotonic()
        self._saved = min(max(1.0, self._qps), self._saved + (now - self._counted) * self._qps)
        self._counted = now
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True

    def until_turn(self) -> float:
        """In how many seconds one that was refused may ask again: each in a turn of its own, not all at once."""
        now = self._clock.monotonic()
        self._turn = min(max(self._turn, now) + 1.0 / self._qps, now + _LONGEST_SECONDS)
        return self._turn - now
