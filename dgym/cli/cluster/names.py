"""From names on the command line to Episodes and EpisodeSets in the cluster."""

from collections.abc import Iterable, Sequence
from urllib.parse import quote

import msgspec

from dgym.api import API_VERSION, labels
from dgym.api.planning import label_value
from dgym.cli.cluster.connection import Cluster
from dgym.cli.cluster.errors import NotFound
from dgym.cli.cluster.views import EpisodeView, SetView
from dgym.cli.failures import UsageFailure
from dgym.problems import nearest

KINDS = {"Episode": "episodes", "EpisodeSet": "episodesets", "DebugTask": "debugtasks"}

_PREFIXES = {
    **dict.fromkeys(("dge", "episode", "episodes", "episode.dgym.dev", "episodes.dgym.dev"), "Episode"),
    **dict.fromkeys(("dgs", "episodeset", "episodesets", "episodeset.dgym.dev", "episodesets.dgym.dev"), "EpisodeSet"),
}


class Found(msgspec.Struct, frozen=True):
    """What a name stands for; ``raw`` is the whole object."""

    view: EpisodeView | SetView
    raw: bytes

    @property
    def kind(self) -> str:
        """``Episode`` or ``EpisodeSet``."""
        return "Episode" if isinstance(self.view, EpisodeView) else "EpisodeSet"


def path_of(kind: str, namespace: str | None, name: str = "") -> str:
    """The path of a collection, or of an object in it; without a namespace that of all namespaces."""
    scope = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    below = f"/{quote(name, safe='')}" if name else ""
    return f"/apis/{API_VERSION}{scope}/{KINDS[kind]}{below}"


async def find_all(
    cluster: Cluster, names: Sequence[str], *, kinds: Iterable[str] = ("Episode", "EpisodeSet")
) -> list[Found]:
    """The objects of these names, each ``NAME`` or, where an Episode and an EpisodeSet share it, ``dgs/NAME``.

    Raises:
        UsageFailure: There is none of that name; the nearest one is named.
    """
    found = [await _find(cluster, name, tuple(kinds)) for name in names]
    missing = [name for name, each in zip(names, found, strict=True) if each is None]
    if missing:
        raise UsageFailure("\n".join([await _unknown(cluster, name, tuple(kinds)) for name in missing]))
    return [each for each in found if each is not None]


def selector_of_children(set_name: str) -> str:
    """Selects the Episodes of a set."""
    return f"{labels.SET}={label_value(set_name)}"


def split_name(text: str) -> tuple[str | None, str]:
    """The kind, if one is given, and the name.

    Raises:
        UsageFailure: What stands before the slash is no kind of ours.
    """
    prefix, slash, name = text.partition("/")
    if not slash:
        return None, text
    if prefix.lower() not in _PREFIXES:
        raise UsageFailure(f"{text}: '{prefix}' is not a kind to name here; write episode/{name} or episodeset/{name}")
    return _PREFIXES[prefix.lower()], name


async def _find(cluster: Cluster, text: str, kinds: tuple[str, ...]) -> Found | None:
    wanted, name = split_name(text)
    for kind in kinds:
        if wanted in (None, kind):
            try:
                raw = await cluster.get(path_of(kind, cluster.namespace, name))
            except NotFound as error:
                if error.reason != "NotFound" or not name:
                    raise
                continue
            view = cluster.decode(raw, EpisodeView) if kind == "Episode" else cluster.decode(raw, SetView)
            return Found(view, raw)
    return None


async def _unknown(cluster: Cluster, text: str, kinds: tuple[str, ...]) -> str:
    wanted, name = split_name(text)
    known: list[str] = []
    for kind in kinds:
        if wanted in (None, kind):
            items, _ = await cluster.list(path_of(kind, cluster.namespace))
            known += [cluster.decode(item, _Named).metadata.name for item in items]
    what = " or ".join([wanted] if wanted else kinds)
    guess = nearest(name, known)
    remedy = f"did you mean '{guess}'?" if guess else "dgym get lists what is there, -n chooses another namespace"
    return f"{text}: no {what} of that name in namespace {cluster.namespace}; {remedy}"


class _Metadata(msgspec.Struct, frozen=True):
    name: str


class _Named(msgspec.Struct, frozen=True):
    metadata: _Metadata
