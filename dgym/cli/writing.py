"""Writing files that a user may have edited: never over one that exists, unless asked to, and never half."""

import os
from pathlib import Path

from dgym.cli.failures import UsageFailure


def write_text(path: Path, text: str, *, force: bool) -> None:
    """Write ``text`` to ``path``; one that exists is replaced only with ``force``.

    Raises:
        UsageFailure: The file exists, or cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        try:
            if force:
                temporary.replace(path)
            else:
                # Unlike a look beforehand, a link cannot be overtaken by somebody else who writes the file.
                path.hardlink_to(temporary)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        raise UsageFailure(f"{path} exists; --force overwrites it") from None
    except OSError as error:
        raise UsageFailure(f"{path} cannot be written: {error.strerror or error}") from None
