"""``dgym logs``."""

import asyncio

import click

from dgym.cli.cluster.connection import ClusterError, connect, find_all
from dgym.cli.cluster.results import open_results
from dgym.cli.cluster.views import EpisodeView
from dgym.cli.cluster.waiting import follow
from dgym.cli.options import context_option, namespace_option, system_namespace_option
from dgym.kube import EPISODES, BadRequest, Client, NotFound
from dgym.results.store import LOG

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
    help="Whose log.",
)
@namespace_option
@context_option
@system_namespace_option
def command(
    name: str, follow: bool, container: str, namespace: str | None, context: str | None, system_namespace: str
) -> None:
    """Show the log of an Episode of a cluster.

    It is that of its pod; once the pod is gone, the log that is stored with the result.

    Exit status: 0, 1 there is no log, or the cluster refuses or cannot be reached, 2 usage or a name that is not there,
    130 Ctrl-C.
    """
    asyncio.run(_logs(name, container, (context, namespace), follow=follow, system_namespace=system_namespace))


async def _logs(
    name: str, container: str, place: tuple[str | None, str | None], *, follow: bool, system_namespace: str
) -> None:
    async with connect(*place) as client:
        (view,) = await find_all(client, [name], kinds=("Episode",))
        assert isinstance(view, EpisodeView)
        if follow and not view.finished and view.status.pod_name is None:
            view = await _with_pod(client, view)
        pod = view.status.pod_name
        if pod is not None and await _print_log(client, pod, container, follow=follow):
            return
        await _print_stored(client, view, container, system_namespace)


async def _with_pod(client: Client, view: EpisodeView) -> EpisodeView:
    """Wait until the episode has a pod or is finished, and show what it waits for."""
    name = view.metadata.name
    only = f"metadata.name={name}"
    shown = ""
    changed = asyncio.Event()
    async with follow(
        client, EPISODES, EpisodeView, changed, namespace=client.namespace, field_selector=only
    ) as episodes:
        while await changed.wait():
            changed.clear()
            current = episodes.get((client.namespace, name))
            if current is None:
                break
            if current.finished or current.status.pod_name is not None:
                return current
            text = _waiting_for(current)
            if text != shown:
                shown = text
                click.echo(f"{name}: {text}", err=True)
    raise ClusterError(f"Episode {name} was deleted")


def _waiting_for(view: EpisodeView) -> str:
    return ": ".join(part for part in (view.status.reason or "Pending", view.message) if part)


async def _print_log(client: Client, pod: str, container: str, *, follow: bool) -> bool:
    """Print the log of a container; False when its pod is gone."""
    where = {"namespace": client.namespace, "container": container}
    while True:
        try:
            piece = b""
            async for piece in client.pod_log(pod, **where, follow=follow, silence_seconds=_SILENCE_SECONDS):
                click.echo(piece, nl=False)
            if piece and not piece.endswith(b"\n"):
                click.echo()
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
        raise ClusterError(f"Episode {name} has had no pod yet ({_waiting_for(view)}); -f waits for it")
    async with open_results(client, system_namespace) as reader:
        files = [file for file in await reader.files(client.namespace, name) if file.path.endswith(f"/{LOG}")]
        own = [file for file in files if file.path.split("/")[2] == view.metadata.uid]
        if not own:
            raise ClusterError(f"Episode {name} has no pod, and no log of it is stored; -f waits for its next pod")
        newest = max(own, key=lambda file: int(file.path.split("/")[3]))
        click.echo(f"the pod is gone; this is the stored log of attempt {newest.path.split('/')[3]}", err=True)
        click.echo(await reader.read(newest), nl=False)
