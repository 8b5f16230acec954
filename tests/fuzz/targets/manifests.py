"""Target for untrusted manifests: every error is a ``ManifestError``, within the limits of the reader."""

import contextlib
import json
from pathlib import Path

import msgspec
import yaml
from hypothesis import strategies as st

from dgym.api import loads
from dgym.documents import dump, read_value
from dgym.errors import ManifestError
from tests.fuzz.engine import Target
from tests.fuzz.mutation import json_values, mutated

_EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
_TEXTS = [path.read_bytes() for path in _EXAMPLES]
_DOCUMENTS = [document for text in _TEXTS for document in yaml.safe_load_all(text) if document]
_PIECES = (
    *(b"&a ", b"*a ", b"<<: *a", b"!!python/object:os.system", b"!!binary ", b"!!set ", b"? ", b"- ", b"---\n"),
    *(
        b"|\n",
        b">-\n",
        b"%YAML 1.2\n",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\t",
        b": {",
        b"[*a,*a,*a]",
        b"12:30",
        b"2001-01-01",
    ),
    *(b"!!timestamp ", b"!!int ", b"!!float ", b".inf", b"0o17", b"1_0", b"\xe2\x80\xa8", b"kind: List\nitems:\n- "),
)


def _changed(number: int, path: list[int], name: str, value: object, file: str) -> tuple[bytes, str]:
    """A valid document with a changed or added value at some place."""
    copy = yaml.load(_WRITTEN[number], _LOADER)
    place = copy
    for step in path:
        inner = [
            each for each in (place.values() if isinstance(place, dict) else place) if isinstance(each, dict | list)
        ]
        place = inner[step % len(inner)] if inner else place
    if isinstance(place, dict):
        place[name if name or not place else sorted(place, key=str)[path[0] % len(place)]] = value
    elif place:
        place[path[0] % len(place)] = value
    return json.dumps(copy).encode(), file


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FILES = st.sampled_from(("a.yaml", "a.json"))
_WRITTEN = [yaml.safe_dump(document) for document in _DOCUMENTS]
_CHANGED = st.builds(
    _changed,
    st.integers(0, len(_WRITTEN) - 1),
    st.lists(st.integers(0, 20), min_size=1, max_size=6),
    st.just("") | st.text(max_size=8),
    json_values(),
    _FILES,
)
_INPUTS = st.tuples(mutated(_TEXTS, _PIECES), _FILES) | _CHANGED


def check(value: tuple[bytes, str]) -> None:
    """Read the text as a manifest and as a value of the command line, then write the result."""
    data, name = value
    text = data.decode("utf-8", "surrogateescape")
    with contextlib.suppress(ManifestError):
        for resource in loads(text, source=name, base="/nonexistent"):
            msgspec.json.encode(resource)
    with contextlib.suppress(ValueError):
        dump(read_value(text))


TARGET = Target("manifests", _INPUTS, check)
