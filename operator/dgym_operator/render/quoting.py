"""Values as JSON that YAML reads as the same values, so that what users wrote is data and never structure."""

import json
import re
from typing import Any

from jinja2 import StrictUndefined
from markupsafe import Markup

# YAML has no surrogate pairs, refuses control characters, and folds lines at U+0085, U+2028 and U+2029.
_UNSAFE = re.compile(r"[^\x20-\x7e]")


def quoted(value: Any) -> Markup:
    """The value as JSON of one line of ASCII; what is quoted already (a macro, a parent's block) stays as it is.

    Every ``{{ … }}`` of a template passes through here, so none can be forgotten.
    """
    if isinstance(value, Markup):
        return value
    if isinstance(value, StrictUndefined):
        str(value)  # raises, and says what is not defined
    # Not markup of a page: Markup marks what is quoted.
    return Markup(_UNSAFE.sub(_escape, json.dumps(value, ensure_ascii=False, allow_nan=False)))  # noqa: S704


def literal(value: Any) -> Any:
    """Text (or a list of texts) for ``command``, ``args`` and ``env``, where Kubernetes would expand ``$(NAME)``."""
    if isinstance(value, list | tuple):
        return [literal(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
