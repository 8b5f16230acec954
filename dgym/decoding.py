"""The exceptions of ``msgspec`` for bytes that it cannot decode, and texts for environment variables that are invalid.

They are not in ``dgym.errors``, because that module does not import libraries.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""For invalid UTF-8 and for deep nesting, msgspec raises built-in exceptions."""
_SHOWN_CHARACTERS = 100


def setting_problems(errors: Iterable[Mapping[str, Any]], prefix: str) -> Iterator[str]:
    """Yield a text for each of pydantic's ``errors``: the environment variable, its value and the error."""
    for error in errors:
        variable = prefix + "_".join(map(str, error["loc"])).upper()
        yield f"{variable} is {str(error['input'])[:_SHOWN_CHARACTERS]!r}: {error['msg']}"
