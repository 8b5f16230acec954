"""The first request of an episode's agent to its model, prepared as in an episode and not sent."""

from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from dgym.episodes.job import Job
from dgym.episodes.local import run_episode
from dgym.episodes.player import Models
from dgym.errors import DgymError
from dgym.llm import Model, withholding_model


class _Withheld(Models):
    """Models that keep the bodies of requests in ``bodies`` and send nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []

    async def open(self, name: str, config: str | None) -> Model:
        return withholding_model(name, self.catalog(config).settings(name), self.bodies.append)


async def first_request(job: Job) -> bytes:
    """The body of the first request of ``job``. Its sandbox is started and its tests run; nothing is stored.

    Raises:
        DgymError: The episode fails before its agent asks the model; the message has the cause.
    """
    models = _Withheld()
    with TemporaryDirectory(prefix="dgym-show-") as directory:
        result = await run_episode(
            msgspec.structs.replace(job, results=str(Path(directory))), lambda _event: None, models=models
        )
    if not models.bodies:
        raise DgymError(f"task {job.task.metadata.name}: no request was made: {result.reason}: {result.message}")
    return models.bodies[0]
