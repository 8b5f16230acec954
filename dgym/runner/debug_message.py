"""Reads what the debugged program says. It may be anything: the program can reach the channel if it wants to."""

_LINES = 100


def checked(message):
    """The message with nothing in it but what belongs there; ValueError when it makes no sense."""
    kind = message.get("type")
    if kind in ("quit", "restart"):
        return {"type": kind}
    if kind not in ("hello", "stop", "end"):
        raise ValueError("an unknown message")
    try:
        if kind == "hello":
            return _hello(message)
        return {
            "type": kind,
            "output": _text(message.get("output", "")),
            "cut": int(message.get("cut", 0)),
            "frame": _frame(message.get("frame")),
            "source": [_text(line) for line in message.get("source", [])[:_LINES]],
            "source_start": int(message.get("source_start", 0)),
            "breakpoints": [breakpoint_fields(entry) for entry in message.get("breakpoints", [])],
            "next_number": int(message.get("next_number", 1)),
            "files": [(_text(path), int(changed), int(size)) for path, changed, size in message.get("files", [])],
            "notices": [_text(notice) for notice in message.get("notices", [])],
            "lost": [_text(each) for each in message.get("lost", [])],
        }
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(str(error))


def _hello(message):
    """The launch that a program of a shell command reports; its paths return to the program unchanged."""
    launch = {name: message.get(name) for name in ("kind", "target", "argv", "orig_argv")}
    words = launch["orig_argv"]
    if not (isinstance(words, list) and words and all(isinstance(word, str) for word in words)):
        raise ValueError("a program without a command line")
    notices = [_text(notice) for notice in message.get("notices", [])]
    return dict(launch, type="hello", is_pytest=bool(message.get("is_pytest")), notices=notices)


def _text(value):
    # File names and source may hold lone surrogates, which no answer can carry.
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


def _frame(value):
    if value is None:
        return None
    return {"file": _text(value["file"]), "line": int(value["line"]), "function": _text(value["function"])}


def breakpoint_fields(value):
    """One entry of the table of breakpoints."""
    condition = value.get("condition")
    return {
        "number": int(value["number"]),
        "file": _text(value["file"]),
        "line": int(value["line"]),
        "condition": None if condition is None else _text(condition),
        "ignore_count": int(value.get("ignore_count") or 0),
        "hits": int(value.get("hits") or 0),
        "enabled": value.get("enabled") is not False,
        "temporary": bool(value.get("temporary")),
    }
