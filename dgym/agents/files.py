"""Files that an agent's parameters name."""

from pathlib import Path


def find_file(reference: str, base: Path) -> Path:
    """The file beside the manifest, or, as with a path typed at the prompt, in the current directory."""
    path = Path(reference).expanduser()
    return path if not (base / path).exists() and path.exists() else base / path
