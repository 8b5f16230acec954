"""Files that an agent's parameters name."""

from pathlib import Path

from dgym.errors import ManifestError


def find_file(reference: str, base: Path | None) -> Path:
    """The file beside the manifest, or, as with a path typed at the prompt, in the current directory.

    Raises:
        ManifestError: There is no ``base``: the agent runs where the author of its parameters may read no files.
    """
    if base is None:
        raise ManifestError(
            f"agent.parameters name the file {reference[:200]!r}, and an agent in a cluster reads none;"
            " write its text into the manifest where the parameter takes it"
        )
    path = Path(reference).expanduser()
    return path if not (base / path).exists() and path.exists() else base / path
