"""Manifests for people to edit: plain data as YAML, comments, and files written whole."""

import os
import re
from pathlib import Path
from typing import Any

import yaml

from dgym.cli.output import UsageFailure
from dgym.terminal import printable


class _Dumper(yaml.SafeDumper):
    """Quotes also what readers of YAML 1.2 take for a number or a truth value; PyYAML writes YAML 1.1."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Write everything out."""
        return True


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^(?:0o[0-7]+|[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)$"),
    list("-+.0123456789"),
)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^[yYnN]$"), list("yYnN"))


def dump(value: Any, *, flow: bool = False) -> str:
    """``value`` as YAML that ends with a newline: in block style, or with ``flow`` on one line."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=float("inf"), default_flow_style=flow)
    return text.removesuffix("...\n")


def comment(text: str) -> str:
    """``text`` as the rest of a comment: printable, on one line."""
    return printable(re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text))


def write_text(path: Path, text: str, *, force: bool) -> None:
    """Write ``text`` to ``path``, whole or not at all; a file that exists is replaced only with ``force``.

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
                # A link fails where the file exists; a check beforehand could be overtaken by another process.
                path.hardlink_to(temporary)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        raise UsageFailure(f"{path} exists; --force overwrites it") from None
    except OSError as error:
        raise UsageFailure(f"{path} cannot be written: {error.strerror or error}") from None
