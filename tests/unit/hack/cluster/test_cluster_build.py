"""Tests of the build of binaries: a failed build is repeated, and the last failure shows its log."""

import pytest

from hack.cluster import build
from hack.cluster.machine import ClusterError

GO = """#!/bin/sh
# Fails as often as $FAILURES says, then writes what -o names.
echo try >> "$COUNT"
[ "$(wc -l < "$COUNT")" -gt "$FAILURES" ] || { echo "go: module: connection reset by peer" >&2; exit 1; }
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\n' > "$2"
chmod +x "$2"
"""


@pytest.fixture
def tries(tmp_path, monkeypatch):
    go, count = tmp_path / "bin" / "go", tmp_path / "count"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(go.parent), prepend=":")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COUNT", str(count))
    monkeypatch.setattr(build, "RETRY_SECONDS", (0.0, 0.0))
    return lambda: count.read_text().count("try")


def test_a_build_is_repeated_when_it_fails(tries, monkeypatch):
    monkeypatch.setenv("FAILURES", "2")
    assert (build.build([build.PAUSE]) / build.PAUSE).is_file()
    assert tries() == 3


def test_a_build_that_keeps_failing_shows_the_end_of_its_log(tries, monkeypatch):
    monkeypatch.setenv("FAILURES", "99")
    with pytest.raises(ClusterError, match=r"building pause failed 3 times(.|\n)*connection reset by peer"):
        build.build([build.PAUSE])
    assert tries() == 3
