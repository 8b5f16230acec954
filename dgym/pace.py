"""Progress of several episodes: counts, rate, remaining time and resolve rate, for all user interfaces of dgym."""

import msgspec


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The number of episodes of a run or an EpisodeSet by state, and how fast they finish.

    Attributes:
        failed: Episodes that ended without a score because of an infrastructure error.
        finished_lately: Episodes that finished in the last ``seconds``, from which the rate is computed.
    """

    total: int
    resolved: int = 0
    unresolved: int = 0
    failed: int = 0
    active: int = 0
    finished_lately: int = 0
    seconds: float = 0.0

    @property
    def done(self) -> int:
        """Number of finished episodes, including failed episodes."""
        return self.resolved + self.unresolved + self.failed

    @property
    def rate(self) -> float:
        """Episodes that finish per second; 0 if none has finished."""
        return self.finished_lately / self.seconds if self.finished_lately > 0 and self.seconds > 0 else 0.0

    @property
    def left_seconds(self) -> float | None:
        """Seconds until the remaining episodes are done at this rate; None without a rate, 0 if all are done."""
        left = max(0, self.total - self.done)
        if not left:
            return 0.0
        return left / self.rate if self.rate else None

    @property
    def resolve_rate(self) -> float | None:
        """Share of resolved episodes among the scored episodes; None if there are none.

        Failed episodes are not included, because the agent is not responsible for them.
        """
        counted = self.resolved + self.unresolved
        return self.resolved / counted if counted else None

    @property
    def counts(self) -> str:
        """``3 resolved, 1 unresolved, 0 failed``."""
        return f"{self.resolved} resolved, {self.unresolved} unresolved, {self.failed} failed"

    def __str__(self) -> str:
        """``3 resolved, 1 unresolved, 0 failed · 2 active · 75 % resolved · 1.5/min · ETA 0:04:00``."""
        parts = [self.counts, f"{self.active} active"]
        if self.resolve_rate is not None:
            parts.append(f"{100 * self.resolve_rate:.0f} % resolved")
        if self.rate and self.done < self.total:
            left = round(self.left_seconds or 0.0)
            speed = f"{self.rate:.1f}/s" if self.rate >= 1 else f"{self.rate * 60:.1f}/min"
            parts += [speed, f"ETA {left // 3600}:{left // 60 % 60:02}:{left % 60:02}"]
        return " · ".join(parts)
