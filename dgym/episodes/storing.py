"""From an episode's result to what the results directory holds."""

from dgym.episodes.job import Job
from dgym.results import Attempt, StoredResult
from dgym.wire import EndReason, Result


def store(
    job: Job, attempt: Attempt, result: Result, *, start_time: str = "", price: str | None = None
) -> StoredResult:
    """Store ``result`` with what identifies the episode."""
    fields = {name: getattr(result, name) for name in Result.__struct_fields__}
    return attempt.save(
        StoredResult(
            **fields,
            namespace=job.namespace,
            episode=job.episode,
            task=job.task.metadata.name,
            agent=job.agent.name,
            model=job.agent.model or "",
            sample=job.sample,
            digest=job.digest,
            start_time=start_time,
            price=price,
        )
    )


def store_lost(job: Job, message: str) -> StoredResult:
    """Store the failure of an episode whose worker processes died; the last attempt holds its trajectory."""
    attempts = job.folder.attempts()
    attempt = attempts[-1] if attempts and attempts[-1].load() is None else job.folder.new_attempt()
    return store(job, attempt, Result(resolved=False, reason=EndReason.AGENT_LOST, message=message))
