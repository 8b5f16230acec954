"""The commands that talk to a cluster: `submit`, `attach`, `get`, `logs`, `results`, `retry` and `cancel`.

This module has their options and help; implementations are imported when a command runs.
"""

import click

from dgym.cli.options import (
    ImageOptions,
    Inputs,
    base_option,
    builder_option,
    check_registry,
    complete_directories,
    context_option,
    namespace_option,
    system_namespace_option,
    takes_inputs,
)


@click.command("attach")
@click.argument("name", metavar="EPISODE")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=900.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until the sandbox is prepared.",
)
@namespace_option
@context_option
def attach_command(name: str, wait: float, namespace: str | None, context: str | None) -> None:
    """Debug in the sandbox of an Episode of a cluster, at this terminal.

    EPISODE has no agent: it is driven from outside. The calls are those of the agent human. quit and Ctrl-D leave it as
    it is, and the same command comes back to it; submit ends and scores it.

    Exit status: 0, 1 there is no such Episode, it has an agent or has finished, or the cluster refuses or cannot be
    reached, 2 usage, 130 Ctrl-C.
    """
    import asyncio

    from dgym.cli.cluster.attach import attach

    asyncio.run(attach(name, context=context, namespace=namespace, wait_seconds=wait))


@click.command("cancel")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@namespace_option
@context_option
def cancel_command(names: tuple[str, ...], namespace: str | None, context: str | None) -> None:
    """End Episodes and EpisodeSets of a cluster before their time.

    NAME is that of an Episode or of an EpisodeSet; episode/NAME and episodeset/NAME tell them apart. What is done so
    far is scored and stored. It cannot be taken back. What is finished stays as it is.

    Exit status: 0, 1 the cluster refuses or cannot be reached, 2 usage or a name that is not there, 130 Ctrl-C.
    """
    import asyncio

    from dgym.cli.cluster.submit import cancel_all

    asyncio.run(cancel_all(names, (context, namespace)))


@click.command("get")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("-l", "--selector", metavar="LABELS", help="Only those with these labels, such as dgym.dev/set=nightly.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Those of all namespaces.")
@click.option("-w", "--watch", is_flag=True, help="Stay and show changes, until Ctrl-C.")
@click.option(
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="Form of the output; json and yaml: the objects themselves.",
)
@namespace_option
@context_option
def get_command(
    names: tuple[str, ...],
    selector: str | None,
    all_namespaces: bool,
    watch: bool,
    output: str,
    namespace: str | None,
    context: str | None,
) -> None:
    """Show the Episodes and EpisodeSets of a cluster.

    NAME is that of an Episode or of an EpisodeSet, which is shown with its Episodes; episode/NAME and episodeset/NAME
    tell them apart. Without a NAME all of the namespace are shown.

    Exit status: 0, 1 the cluster refuses or cannot be reached, 2 usage or a name that is not there, 130 Ctrl-C.
    """
    import asyncio

    from dgym.cli.cluster.get import show_objects

    if names and (selector or all_namespaces):
        raise click.UsageError("names do not go with --selector and --all-namespaces; give one or the other")
    if watch and output != "table":
        raise click.UsageError(f"--watch shows tables; leave out --output, or watch with kubectl get -w -o {output}")
    place = (context, namespace)
    asyncio.run(show_objects(names, selector or "", output, everywhere=all_namespaces, watch=watch, place=place))


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
def logs_command(
    name: str, follow: bool, container: str, namespace: str | None, context: str | None, system_namespace: str
) -> None:
    """Show the log of an Episode of a cluster.

    It is that of its pod; once the pod is gone, the log that is stored with the result.

    Exit status: 0, 1 there is no log, or the cluster refuses or cannot be reached, 2 usage or a name that is not there,
    130 Ctrl-C.
    """
    import asyncio

    from dgym.cli.cluster.logs import show_log

    asyncio.run(show_log(name, container, (context, namespace), follow=follow, system_namespace=system_namespace))


@click.command("results")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--directory",
    metavar="DIR",
    default="results",
    show_default=True,
    shell_complete=complete_directories,
    help="Where the results go.",
)
@click.option("--story", is_flag=True, help="Print what happened, step by step; NAME may be a directory of results.")
@click.option(
    "--step",
    type=click.IntRange(min=0),
    metavar="N",
    help="With --story: print step N alone, with every message that the model got before it.",
)
@namespace_option
@context_option
@system_namespace_option
def results_command(
    names: tuple[str, ...],
    directory: str,
    story: bool,
    step: int | None,
    namespace: str | None,
    context: str | None,
    system_namespace: str,
) -> None:
    """Fetch results, patches and trajectories of Episodes of a cluster.

    NAME is that of an Episode or of an EpisodeSet, whose Episodes are then fetched, those too that are deleted already;
    episode/NAME and episodeset/NAME tell them apart. They come from the results store where this machine has it as a
    directory, else from an agent through a port-forward. `dgym report DIR` reads what is fetched.

    With --story the terminal shows the newest attempt of each: what the model was sent (new messages in a line each),
    what it thought, did and saw, and the end. --step shows one step, and the whole request before it. Where every NAME
    is a directory, such as results/local/EPISODE, nothing is fetched.

    Exit status: 0, 1 nothing is stored yet of some, or the cluster refuses or cannot be reached, 2 usage or a name that
    is not there, 130 Ctrl-C.
    """
    from pathlib import Path

    if step is not None and not story:
        raise click.UsageError("--step belongs to --story: add --story")
    if story and all(Path(name).is_dir() for name in names):
        from dgym.cli.story import show_stories

        show_stories(names, step=step)
        return
    for name in names:
        # Names of a cluster have one slash at most: episode/NAME.
        if story and name.count("/") > 1 and not Path(name).is_dir():
            raise click.UsageError(
                f"{name}: this directory does not exist; give one that dgym run wrote its results to"
            )
    from dgym.cli.cluster.results import fetch_and_show

    fetch_and_show(
        names, directory, place=(context, namespace), system_namespace=system_namespace, story=story, step=step
    )


@click.command("retry")
@click.argument("names", nargs=-1, required=True, metavar="SET...")
@click.option(
    "--reason",
    "reasons",
    multiple=True,
    metavar="REASON",
    help="Only those that failed with it, such as ModelError; may be repeated.",
)
@namespace_option
@context_option
def retry_command(names: tuple[str, ...], reasons: tuple[str, ...], namespace: str | None, context: str | None) -> None:
    """Run the failed episodes of EpisodeSets of a cluster again.

    Failed episodes are those without a verdict, such as ModelError and SandboxLost. They begin anew under the same
    names; what their former runs have stored stays, and `dgym report` counts the last. A set without failed episodes
    stays as it is.

    Exit status: 0, 1 the cluster refuses or cannot be reached, 2 usage or a name that is not there, 130 Ctrl-C.
    """
    import asyncio

    from dgym.cli.cluster.submit import retry_all

    asyncio.run(retry_all(names, reasons, (context, namespace)))


@click.command("submit")
@takes_inputs()
@click.option("--wait", is_flag=True, help="Stay until everything is finished, and show the outcomes.")
@click.option("--dry-run", is_flag=True, help="Let the cluster check everything and create nothing.")
@click.option(
    "--registry",
    metavar="REGISTRY",
    callback=check_registry,
    help="Build the images of tasks that name none, and push those that REGISTRY lacks.",
)
@base_option
@builder_option
@click.option(
    "--output",
    type=click.Choice(["yaml", "json"]),
    help="Print the manifests as they would be applied, and apply nothing.",
)
@namespace_option
@context_option
def submit_command(
    inputs: Inputs,
    wait: bool,
    dry_run: bool,
    registry: str | None,
    base: str | None,
    builder: str,
    output: str | None,
    namespace: str | None,
    context: str | None,
) -> None:
    """Run the Episodes and EpisodeSets of MANIFESTs in a cluster.

    DebugTasks, Episodes and EpisodeSets are applied as kubectl apply does: what is there already and the same is left
    alone. A MANIFEST that is a directory is a repository to debug (name the agent, and with --entrypoint what runs its
    tests). With --registry a task without an image gets one with its environment and repository, as by dgym image
    build; without it, repositories of this machine travel inside the manifest, up to 200 KiB.

    Exit status: 0 (with --wait: every episode has a verdict), 1 some failed, or the cluster refuses or cannot be
    reached, 2 usage or manifest, 130 Ctrl-C (the episodes go on).
    """
    from dgym.cli.cluster.submit import submit_all

    if wait and (dry_run or output):
        raise click.UsageError(f"--{'output' if output else 'dry-run'} creates nothing to --wait for; leave one out")
    if base is not None and registry is None:
        raise click.UsageError("--base is for images that are built; name a --registry too")
    images = None if registry is None else ImageOptions(registry=registry, base=base, builder=builder)
    submit_all(inputs, (context, namespace), wait=wait, dry_run=dry_run, images=images, output=output)
