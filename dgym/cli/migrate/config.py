"""Reading a configuration of debug-gym: sections of agents, each merged over the section ``base``."""

from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from dgym.api.fields import API_VERSION
from dgym.errors import ManifestError

BASE = "base"
_TELLING = frozenset({"env_kwargs", "llm_name", "max_steps", "agent_type"})
"""Keys that are found in sections; at the top level they mean a file without sections."""

_DEFAULT_AGENT = "rewrite_agent"


class Section(msgspec.Struct, frozen=True):
    """One agent's settings, those of ``base`` included."""

    name: str
    values: dict[str, Any]


class Fate(StrEnum):
    """What became of a key; the values are headings."""

    LOST = "Not converted"
    CHANGED = "Converted with a difference"
    NEEDLESS = "Left out without a loss"


class Note(msgspec.Struct, frozen=True):
    """What became of a key that is not in the manifest as it was."""

    section: str
    key: str
    text: str
    fate: Fate = Fate.LOST


def read_sections(path: Path, agent: str | None = None) -> list[Section]:
    """The sections of ``path``, or the one of ``agent``.

    Raises:
        ManifestError: The file is not a configuration of debug-gym, or has no such section.
    """
    values = _read(path)
    if values.get("apiVersion") == API_VERSION:
        raise ManifestError(f"{path}: is a manifest of dgym already; run it with dgym run")
    if _TELLING & values.keys():
        name = values.get("agent_type")
        return [Section(name if isinstance(name, str) else _DEFAULT_AGENT, values)]
    base = values.get(BASE, {})
    sections = {name: value for name, value in values.items() if name != BASE}
    if not isinstance(base, dict) or not sections or not all(isinstance(value, dict) for value in sections.values()):
        raise ManifestError(f"{path}: not a configuration of debug-gym: it has no sections with an agent's settings")
    if agent is not None and agent not in sections:
        raise ManifestError(f"{path}: has no section {agent!r}; there are {', '.join(sections)}")
    return [Section(name, {**base, **value}) for name, value in sections.items() if agent in (None, name)]


def _read(path: Path) -> dict[str, Any]:
    from dgym.documents import read_yaml

    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    documents = list(read_yaml(text))
    for document in documents:
        for problem in document.problems:
            raise ManifestError(f"{path}: line {problem.line}: {problem.message}")
    if len(documents) != 1 or not isinstance(documents[0].value, dict):
        raise ManifestError(f"{path}: not a configuration of debug-gym, which is one YAML mapping")
    return {str(name): value for name, value in documents[0].value.items()}
