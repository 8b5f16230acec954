"""Git's delta encoding: what ``git diff --binary`` writes where it is shorter than the whole file."""

DATA_LIMIT = 256 * 1024**2
"""Bytes that a delta may expand to; a few bytes of delta can ask for any amount."""


def apply_delta(base: bytes, delta: bytes) -> bytes:
    """Expand ``delta`` over ``base``.

    Raises:
        ValueError: the delta is damaged, or belongs to another base.
    """
    base_size, at = _size(delta, 0)
    size, at = _size(delta, at)
    if base_size != len(base):
        raise ValueError(f"the delta is for a file of {base_size} bytes, not of {len(base)}")
    if size > DATA_LIMIT:
        raise ValueError(f"the delta asks for {size} bytes, more than {DATA_LIMIT}")
    result = bytearray()
    while at < len(delta) and len(result) <= size:
        code = delta[at]
        if code & 0x80:
            start, length, at = _copy(delta, at)
            piece = base[start : start + length]
        else:
            length = code
            piece = delta[at + 1 : at + 1 + length]
            at += 1 + length
        if not length or len(piece) != length:
            raise ValueError("the delta is damaged")
        result += piece
    if len(result) != size:
        raise ValueError(f"the delta gives {len(result)} bytes instead of {size}")
    return bytes(result)


def _size(delta: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and where it ends."""
    value = shift = 0
    while at < len(delta):
        byte = delta[at]
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if not byte & 0x80:
            return value, at
    raise ValueError("the delta is cut off")


def _copy(delta: bytes, at: int) -> tuple[int, int, int]:
    """The offset and length of a copy instruction, whose lower bits say which of their bytes are there."""
    code = delta[at]
    at += 1
    numbers = bytearray(7)
    for bit in range(7):
        if code & (1 << bit):
            if at >= len(delta):
                raise ValueError("the delta is cut off")
            numbers[bit] = delta[at]
            at += 1
    return int.from_bytes(numbers[:4], "little"), int.from_bytes(numbers[4:], "little") or 0x10000, at
