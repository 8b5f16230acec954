"""Circuit breakers of an agent pod: no episode begins with a model that is out, until a probe is answered.

The state machine is pure: times are arguments. Each open breaker lets one episode through as a probe (half-open) once
its pause is over, and pauses for longer after each probe that fails.
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterator

from dgym.errors import ModelUnavailable
from dgym.wire.assignments import ModelOutage

FAILURES = 3
"""A model is out once so many episodes in a row have used up the retries of a request."""
FIRST_PAUSE_SECONDS = 15.0
LONGEST_PAUSE_SECONDS = 300.0
_CAUSE_CHARACTERS = 500


class Breaker:
    """The breaker of one model."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._failures = 0
        self._pause = 0.0
        self._until = 0.0
        self._probe: object | None = None
        self.cause = ""
        """Why the model is out; empty: it is not."""

    def is_probe_due(self, now: float) -> bool:
        """Whether one episode may probe the model that is out."""
        return self._probe is None and now >= self._until

    def admits(self, episode: object, now: float) -> bool:
        """Whether the episode may use the model; while the model is out, only as its probe."""
        if self.cause and not self.is_probe_due(now):
            return False
        self._probe = episode if self.cause else None
        return True

    def answered(self) -> None:
        """The model has answered a request: it is not out."""
        self._failures, self._pause, self._probe, self.cause = 0, 0.0, None, ""

    def failed(self, cause: str, now: float) -> None:
        """The provider failed an episode's request."""
        self._failures += 1
        if self._failures < FAILURES:
            return
        if not self.cause or self._probe is not None:
            self._pause = min(LONGEST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, 2 * self._pause))
            # With jitter, so that agent pods do not probe at the same moment.
            self._until = now + self._pause * (0.5 + self._chance() / 2)
            self._probe = None
        self.cause = cause

    def left(self, episode: object) -> None:
        """The episode has ended; if it was the probe and the model neither answered nor failed, another one may be."""
        if self._probe is episode:
            self._probe = None


class Breakers:
    """The breakers of an agent pod, by the name of the model; only of models whose provider has failed."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random
    ) -> None:
        self._clock = clock
        self._chance = chance
        self._breakers: dict[str, Breaker] = {}

    @contextlib.contextmanager
    def guard(self, model: str, episode: object) -> Iterator[None]:
        """Run an episode unless its model is out.

        Raises:
            ModelUnavailable: The model is out and was not asked, or it failed in the context.
        """
        breaker = self._breakers.get(model)
        if breaker is not None and not breaker.admits(episode, self._clock()):
            raise ModelUnavailable(f"{breaker.cause}; no episode begins with it until a probe is answered")
        try:
            yield
        except ModelUnavailable as error:
            self._breakers.setdefault(model, Breaker(self._chance)).failed(str(error), self._clock())
            raise
        finally:
            if model in self._breakers:
                self._breakers[model].left(episode)

    def answered(self, model: str) -> None:
        """The model has answered a request."""
        if model in self._breakers:
            self._breakers[model].answered()

    def report(self) -> tuple[ModelOutage, ...]:
        """The models that are out, for the operator."""
        now = self._clock()
        return tuple(
            ModelOutage(model=model, message=each.cause[:_CAUSE_CHARACTERS], probe=each.is_probe_due(now))
            for model, each in self._breakers.items()
            if each.cause
        )

    def outages(self) -> Iterator[tuple[str, bool]]:
        """The models that have failed, and whether each is out."""
        for model, breaker in self._breakers.items():
            yield model, bool(breaker.cause)
