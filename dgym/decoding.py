"""What ``msgspec`` raises for bytes that it cannot decode. Apart from ``dgym.errors``, which loads no library."""

from typing import Final

import msgspec

DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""Bad UTF-8 and deep nesting are not among its own errors."""
