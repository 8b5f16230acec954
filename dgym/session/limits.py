"""What bounds an episode, and which bound was reached. Pure."""

import msgspec

from dgym.wire import EndReason


class EpisodeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one episode. ``deadline_seconds`` counts from the first reset; None means unbounded.

    The rewrite that reaches ``max_rewrites`` ends the episode. With 0 the tool ``rewrite`` is not there, and the first
    change by another tool that counts as a rewrite ends the episode.
    """

    max_steps: int = 50
    max_rewrites: int | None = None
    deadline_seconds: float | None = 3600.0

    def reached(self, *, steps: int, rewrites: int) -> EndReason | None:
        """The limit that ends the episode after ``steps`` steps with ``rewrites`` successful rewrites, if any."""
        if self.max_rewrites is not None and rewrites >= max(self.max_rewrites, 1):
            return EndReason.REWRITE_LIMIT_REACHED
        if steps >= self.max_steps:
            return EndReason.STEP_LIMIT_REACHED
        return None
