"""``dgym logs``."""

from typing import TYPE_CHECKING

import click

from dgym.cli.cluster.options import context_option, namespace_option, run, system_namespace_option

if TYPE_CHECKING:
    from dgym.cli.cluster.connection import Cluster
    from dgym.cli.cluster.views import EpisodeView

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
    run(_logs(name, container, (context, namespace), follow=follow, system_namespace=system_namespace))


async def _logs(
    name: str, container: str, place: tuple[str | None, str | None], *, follow: bool, system_namespace: str
) -> None:
    from dgym.cli.cluster.connection import Cluster
    from dgym.cli.cluster.names import find_all
    from dgym.cli.cluster.views import EpisodeView

    async with await Cluster.connect(*place) as cluster:
        (found,) = await find_all(cluster, [name], kinds=("Episode",))
        view = found.view
        assert isinstance(view, EpisodeView)
        if follow and not view.finished and view.status.pod_name is None:
            view = await _with_pod(cluster, view)
        pod = view.status.pod_name
        if pod is not None and await _print_log(cluster, pod, container, follow=follow):
            return
        await _print_stored(cluster, view, container, system_namespace)


async def _with_pod(cluster: "Cluster", view: "EpisodeView") -> "EpisodeView":
    """Wait until the episode has a pod or is finished, and say what it waits for."""
    import contextlib

    from dgym.cli.cluster.errors import ClusterError
    from dgym.cli.cluster.following import follow
    from dgym.cli.cluster.names import path_of
    from dgym.cli.cluster.views import EpisodeView

    name = view.metadata.name
    only = f"metadata.name={name}"
    told = ""
    path = path_of("Episode", cluster.namespace)
    async with contextlib.aclosing(follow(cluster, path, EpisodeView, fields=only)) as states:
        async for state in states:
            current = state.get((cluster.namespace, name))
            if current is None:
                break
            if current.finished or current.status.pod_name is not None:
                return current
            text = ": ".join(part for part in (current.status.reason or "Pending", current.message) if part)
            if text != told:
                told = text
                click.echo(f"{name}: {text}", err=True)
    raise ClusterError(f"Episode {name} was deleted")


async def _print_log(cluster: "Cluster", pod: str, container: str, *, follow: bool) -> bool:
    """Print the log of a container; False when its pod is gone."""
    import asyncio

    from dgym.cli.cluster.errors import ApiRefused, NotFound

    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}/log"
    params = {"container": container, **({"follow": "true"} if follow else {})}
    while True:
        try:
            async for line in cluster.lines(path, silence=_SILENCE_SECONDS, **params):
                click.echo(line)
        except NotFound:
            return False
        except ApiRefused as error:
            if not (follow and error.status == 400 and "waiting to start" in str(error)):
                raise
            await asyncio.sleep(_STARTING_SECONDS)
            continue
        return True


async def _print_stored(cluster: "Cluster", view: "EpisodeView", container: str, system_namespace: str) -> None:
    from dgym.cli.cluster.errors import ClusterError
    from dgym.cli.cluster.results_reader import open_results
    from dgym.results.store import LOG

    name = view.metadata.name
    if container != "sidecar":
        raise ClusterError(f"Episode {name} has no pod, and the log of its {container} is gone; leave out --container")
    if not view.status.attempt:
        waiting = ": ".join(part for part in (view.status.reason or "Pending", view.message) if part)
        raise ClusterError(f"Episode {name} has had no pod yet ({waiting}); -f waits for it")
    async with open_results(cluster, system_namespace) as reader:
        files = [file for file in await reader.files(cluster.namespace, name) if file.path.endswith(f"/{LOG}")]
        own = [file for file in files if file.path.split("/")[2] == view.metadata.uid]
        if not own:
            raise ClusterError(f"Episode {name} has no pod, and no log of it is stored; -f waits for its next pod")
        newest = max(own, key=lambda file: int(file.path.split("/")[3]))
        click.echo(f"the pod is gone; this is the stored log of attempt {newest.path.split('/')[3]}", err=True)
        click.echo(await reader.read(newest), nl=False)
