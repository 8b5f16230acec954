"""Make an episode's pod ready to be driven: its repository fetched and delivered, its task told."""

from dgym.agents import Tools
from dgym.api import DebugTask
from dgym.env.preparation import RemotePreparation
from dgym.episodes.pod.progress import Progress, Shared
from dgym.session import EpisodeLimits


async def prepare(
    preparation: RemotePreparation,
    task: DebugTask,
    *,
    tools: Tools,
    limits: EpisodeLimits,
    shared: Shared,
    progress: Progress,
) -> None:
    """Deliver the repository and the task.

    Raises:
        SourceFailed: The repository could not be obtained.
        ManifestError: The task, a tool or a limit is wrong.
        ConflictError: The attempt was prepared otherwise.
    """
    source = task.spec.source
    with progress.timed("prepare"):
        if source is None:
            await preparation.prepare(task, source=None, tools=tools, limits=limits)
        else:
            async with shared.sources.packed(source) as path:
                await preparation.prepare(task, source=path, tools=tools, limits=limits)
