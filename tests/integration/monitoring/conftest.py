import shutil
from pathlib import Path

import pytest

from tests.required import absent

ROOT = Path(__file__).parents[3]
FILES = ROOT / "charts" / "dgym" / "files"
DASHBOARDS = FILES / "dashboards"
RULES = FILES / "monitoring" / "rules.yaml"


def program(name: str) -> str:
    """The path of Prometheus or promtool."""
    found = shutil.which(name)
    if found is None:
        absent("prometheus", f"no {name} on PATH (`hack/system-packages monitoring` installs it on Debian)")
    return found


@pytest.fixture(scope="session")
def promtool() -> str:
    return program("promtool")
