"""The plugins that pytest's settings need: without them pytest ends with a usage error before any test."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

_BY_OPTION = {
    "--allow-hosts": "pytest-socket",
    "--asyncio-mode": "pytest-asyncio",
    "--benchmark": "pytest-benchmark",
    "--black": "pytest-black",
    "--cov": "pytest-cov",
    "--disable-socket": "pytest-socket",
    "--dist": "pytest-xdist",
    "--doctest-plus": "pytest-doctestplus",
    "--doctest-rst": "pytest-doctestplus",
    "--ds": "pytest-django",
    "--flake8": "pytest-flake8",
    "--forked": "pytest-forked",
    "--html": "pytest-html",
    "--instafail": "pytest-instafail",
    "--isort": "pytest-isort",
    "--mpl": "pytest-mpl",
    "--mypy": "pytest-mypy",
    "--nbval": "nbval",
    "--no-cov": "pytest-cov",
    "--numprocesses": "pytest-xdist",
    "--pylint": "pytest-pylint",
    "--random-order": "pytest-random-order",
    "--randomly": "pytest-randomly",
    "--remote-data": "pytest-remotedata",
    "--reruns": "pytest-rerunfailures",
    "--ruff": "pytest-ruff",
    "--snapshot": "syrupy",
    "--strict-asyncio": "pytest-asyncio",
    "--testmon": "pytest-testmon",
    "--timeout": "pytest-timeout",
    "-n": "pytest-xdist",
}
"""Long options stand for themselves and for those that begin with them and a hyphen: ``--cov-report``."""

_BY_SETTING = {
    "DJANGO_SETTINGS_MODULE": "pytest-django",
    "asyncio_default_fixture_loop_scope": "pytest-asyncio",
    "asyncio_mode": "pytest-asyncio",
    "env": "pytest-env",
    "qt_api": "pytest-qt",
    "timeout": "pytest-timeout",
    "trio_mode": "pytest-trio",
}
_SHORT = re.compile(r"^-n(\d+|auto|logical)?$")


def plugins_of(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Requirements for the plugins that ``required_plugins``, ``addopts`` and other settings need, in order."""
    return tuple(dict.fromkeys(_plugins_of(settings)))


def _plugins_of(settings: Mapping[str, Any]) -> Iterator[str]:
    yield from _words(settings.get("required_plugins"))
    for word in _words(settings.get("addopts")):
        option = "-n" if _SHORT.match(word) else word.partition("=")[0]
        for known, plugin in _BY_OPTION.items():
            if option == known or (known.startswith("--") and option.startswith(f"{known}-")):
                yield plugin
    for name, plugin in _BY_SETTING.items():
        # A configuration file's parser folds the names of settings.
        if name in settings or name.lower() in settings:
            yield plugin


def _words(value: Any) -> list[str]:
    if isinstance(value, list):
        return [item for item in value if isinstance(item, str)]
    if not isinstance(value, str):
        return []
    try:
        return shlex.split(value)
    except ValueError:
        return value.split()
