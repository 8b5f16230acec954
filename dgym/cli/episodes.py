"""The episodes that a command line names, whoever is to run them: this machine or a cluster."""

from collections.abc import Sequence

from dgym.api import Loaded
from dgym.cli.bundles import load_bundle
from dgym.cli.resources import agent_in, override, read_manifests


def read_episodes(
    manifests: Sequence[str],
    folders: Sequence[str],
    *,
    bundled: str | None,
    agent: str | None,
    assignments: Sequence[str],
    entrypoint: str | None,
) -> list[Loaded]:
    """Manifests, repositories and a benchmark, changed as the flags say; ``agent`` is short for ``-p agent.name=…``.

    Tasks alone become an episode each where an agent is named, in either way.

    Raises:
        ManifestError: A manifest, a name or an assignment is wrong.
    """
    loaded = read_manifests(manifests, folders, entrypoint=entrypoint)
    if agent:
        assignments = (f"agent.name={agent}", *assignments)
    if agent_in(assignments) and loaded and all(item.resource.kind == "DebugTask" for item in loaded):
        from dgym.episodes.plan import episodes_for

        loaded = [*loaded, *episodes_for(loaded)]
    if bundled:
        loaded = [*loaded, *load_bundle(bundled)]
    return override(loaded, assignments)
