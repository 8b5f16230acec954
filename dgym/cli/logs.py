"""``dgym logs``: show the log of an episode's pod or, once the pod is deleted, the stored log."""

import asyncio
import codecs
import contextlib
import io
from collections.abc import AsyncIterator, Callable

import click

from dgym.cli.cluster.connection import ClusterError, EpisodeView, connect, find_all, follow
from dgym.cli.cluster.results import open_results
from dgym.cli.options import ClusterPlace, takes_cluster_place
from dgym.cli.output import echo
from dgym.kube import EPISODES, BadRequest, Client, NotFound
from dgym.results import LOG
from dgym.terminal import printable_line

_SILENCE_SECONDS = 4 * 3600.0
_STARTING_SECONDS = 1.0


@click.command("logs")
@click.argument("name", metavar="EPISODE")
@click.option("-f", "--follow", is_flag=True, help="Wait for the pod and show its log as it grows.")
@click.option(
    "--container",
    type=click.Choice(["sidecar", "sandbox", "verifier", "install", "copy"]),
    default="sidecar",
    show_default=True,
    help="The container whose log is shown.",
)
@takes_cluster_place()
def logs_command(name: str, follow: bool, container: str, place: ClusterPlace) -> None:
    """Show the log of an Episode of a cluster.

    This is the log of its pod or, if the pod no longer exists, the log that is stored with the result.

    Exit status: 0, 1 a log was not found, or the cluster refuses or cannot be reached, 2 usage or a name that does not
    exist, 130 Ctrl-C.
    """
    asyncio.run(_show_log(name, container, place, follow=follow))


async def _show_log(name: str, container: str, place: ClusterPlace, *, follow: bool) -> None:
    async with connect(place) as client:
        (view,) = await find_all(client, [name], kinds=("Episode",))
        assert isinstance(view, EpisodeView)
        if follow and not view.finished and view.status.pod_name is None:
            view = await _with_pod(client, view)
        pod = view.status.pod_name
        if pod is not None:
            async with _causes(client, view, follow=follow):
                if await _print_log(client, pod, container, follow=follow):
                    return
        await _print_stored(client, view, container, place.system_namespace)


@contextlib.asynccontextmanager
async def _causes(client: Client, view: EpisodeView, *, follow: bool) -> AsyncIterator[None]:
    """Show what an episode with a pod waits for, such as its model. Containers do not log this."""
    shown = _show(view) if view.message and not view.finished else ""
    if view.finished or not follow:
        yield
        return
    showing = asyncio.create_task(_show_changes(client, view, lambda current: current.finished, shown))
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


def _show(view: EpisodeView) -> str:
    text = _waiting_for(view)
    echo(printable_line(f"{view.metadata.name}: {text}"), err=True)
    return text


async def _with_pod(client: Client, view: EpisodeView) -> EpisodeView:
    return await _show_changes(
        client, view, lambda current: current.finished or current.status.pod_name is not None, ""
    )


async def _show_changes(
    client: Client, view: EpisodeView, until: Callable[[EpisodeView], bool], shown: str
) -> EpisodeView:
    """Show what the episode waits for whenever it differs from ``shown``, until ``until`` returns True.

    Returns:
        The first state for which ``until`` returns True.

    Raises:
        ClusterError: The episode was deleted.
    """
    name = view.metadata.name
    only = f"metadata.name={name}"
    changed = asyncio.Event()
    async with follow(
        client, EPISODES, EpisodeView, changed, namespace=client.namespace, field_selector=only
    ) as episodes:
        while await changed.wait():
            changed.clear()
            current = episodes.get((client.namespace, name))
            if current is None:
                break
            if until(current):
                return current
            has_pod = current.status.pod_name is not None
            if (current.message or not has_pod) and _waiting_for(current) != shown:
                shown = _show(current)
    raise ClusterError(f"Episode {name} was deleted")


def _waiting_for(view: EpisodeView) -> str:
    return ": ".join(part for part in (view.status.reason or "Pending", view.message) if part)


async def _print_log(client: Client, pod: str, container: str, *, follow: bool) -> bool:
    """Print the log of a container. Return False if its pod does not exist."""
    where = {"namespace": client.namespace, "container": container}
    while True:
        try:
            decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
            text = ""
            async for piece in client.pod_log(pod, **where, follow=follow, silence_seconds=_SILENCE_SECONDS):
                text = decoder.decode(piece) or text
                echo(text, nl=False)
            if text and not text.endswith("\n"):
                echo()
        except NotFound:
            return False
        except BadRequest as error:
            if not (follow and "waiting to start" in error.message):
                raise
            await asyncio.sleep(_STARTING_SECONDS)
            continue
        return True


async def _print_stored(client: Client, view: EpisodeView, container: str, system_namespace: str) -> None:
    name = view.metadata.name
    if container != "sidecar":
        raise ClusterError(f"Episode {name} has no pod, and the log of its {container} is gone; leave out --container")
    if not view.status.attempt:
        raise ClusterError(f"Episode {name} does not have a pod yet ({_waiting_for(view)}); -f waits for it")
    async with open_results(client, system_namespace) as reader:
        files = [file for file in await reader.files(client.namespace, name) if file.path.endswith(f"/{LOG}")]
        own = [file for file in files if file.path.split("/")[2] == view.metadata.uid]
        if not own:
            over = view.status.has("Finished")
            remedy = "the Episode has finished and does not get another pod" if over else "-f waits for its next pod"
            raise ClusterError(f"Episode {name} has no pod, and no log of it is stored; {remedy}")
        newest = max(own, key=lambda file: int(file.path.split("/")[3]))
        echo(f"the pod is gone; this is the stored log of attempt {newest.path.split('/')[3]}", err=True)
        echo((await reader.read(newest)).decode("utf-8", "replace"), nl=False)
