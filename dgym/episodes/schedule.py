"""Which job is next: in order, within the parallelism of each set, and not beyond a set's ``maxFailed``. Pure."""

from collections import Counter, deque
from collections.abc import Iterable

from dgym.episodes.job import Job


class Schedule:
    """Hands out jobs and keeps count of each group.

    A job that waits for its group does not hold up the jobs of other groups behind it.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._waiting = deque(jobs)
        self._active: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()

    @property
    def finished(self) -> bool:
        """Nothing waits and nothing runs."""
        return not self._waiting and not self._active.total()

    def next(self) -> Job | None:
        """The next job that may start now."""
        held_back: deque[Job] = deque()
        found = None
        while self._waiting and found is None:
            job = self._waiting.popleft()
            if self._given_up(job):
                continue
            if self._full(job):
                held_back.append(job)
            else:
                found = job
        self._waiting.extendleft(reversed(held_back))
        if found is not None:
            self._active[found.group] += 1
        return found

    def again(self, job: Job) -> None:
        """Put a job that was handed out back in front."""
        self._active[job.group] -= 1
        self._waiting.appendleft(job)

    def done(self, job: Job, *, failed: bool) -> None:
        """A job that was handed out is over."""
        self._active[job.group] -= 1
        self._failed[job.group] += failed

    def _full(self, job: Job) -> bool:
        return bool(job.group) and job.parallelism is not None and self._active[job.group] >= job.parallelism

    def _given_up(self, job: Job) -> bool:
        return bool(job.group) and job.max_failed is not None and self._failed[job.group] > job.max_failed
