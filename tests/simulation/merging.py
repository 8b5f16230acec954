"""JSON merge patches, as the API server applies them (RFC 7386)."""


def merged(target, patch):
    """Return ``target`` with the merge patch applied."""
    result = dict(target)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            inner = result.get(name)
            result[name] = merged(inner if isinstance(inner, dict) else {}, value)
        else:
            result[name] = value
    return result
