"""Writing the commented template of ``llm.yaml``."""

import os
from importlib.resources import files
from pathlib import Path

from dgym.errors import ModelConfigError


def template() -> str:
    """The template's text."""
    return files("dgym.llm").joinpath("llm_template.yaml").read_text(encoding="utf-8")


def write_template(path: Path, *, overwrite: bool) -> bool:
    """Write the template, readable by its owner only since keys may be put into it; False if something is there.

    Raises:
        ModelConfigError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if overwrite:
            path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise ModelConfigError(f"{path}: cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(template())
    return True
