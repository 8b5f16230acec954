from pathlib import Path

import pytest

from hack.cluster.build import find_binary
from tests.support.required import absent

ROOT = Path(__file__).parents[3]
FILES = ROOT / "charts" / "dgym" / "files"
DASHBOARDS = FILES / "dashboards"
RULES = FILES / "monitoring" / "rules.yaml"


def program(name: str) -> str:
    """The path of Prometheus or promtool."""
    found = find_binary(name)
    if found is None:
        absent("prometheus", f"no {name} in the cache or on PATH (`make binaries` builds it)")
    return str(found)


@pytest.fixture(scope="session")
def promtool() -> str:
    return program("promtool")
