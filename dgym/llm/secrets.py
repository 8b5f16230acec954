"""Keys that cannot be printed by accident."""

import re
from collections.abc import Iterable
from typing import Any, NoReturn

MASK = "*****"

_SHORTEST = 4
_KEY_LIKE = re.compile(r"\b(sk|hf|xai|gsk)[-_][A-Za-z0-9_\-*.]{5,}[A-Za-z0-9_\-*]")
_BEARER = re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=\-]{6,}")


class Secret:
    """Text that only ``reveal`` returns: ``str``, ``repr``, logs, JSON and pickles never hold it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the header of a request."""
        return self._text

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def __str__(self) -> str:
        return MASK

    def __format__(self, _: str) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled; read the configuration again where it is needed")


def mask(text: str, secrets: Iterable[Secret] = ()) -> str:
    """``text`` without the secrets and without what looks like a key, since providers quote keys in their errors."""
    for secret in sorted((secret.reveal() for secret in secrets), key=len, reverse=True):
        # A word of three letters is no key, and replacing it would spoil every sentence.
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, MASK)
    return _BEARER.sub(rf"\1{MASK}", _KEY_LIKE.sub(MASK, text))


def decode_secret(kind: type, value: Any) -> Any:
    """A hook of msgspec: text becomes a ``Secret``."""
    if kind is not Secret:
        raise NotImplementedError(kind)
    if not isinstance(value, str):
        raise ValueError("Expected text; put quotes around it")
    return Secret(value)
