"""Writes the generated files of the chart: custom resource definitions, and the table of values in its README.

python hack/chart.py            write them
python hack/chart.py --check    exit status 1 if that would change anything
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from dgym.api import custom_resource_definitions
from hack.tables import Section, table

CHART = Path(__file__).resolve().parent.parent / "charts" / "dgym"
VALUES = Section(CHART / "README.md", "values")
_KEY = re.compile(r"( *)([A-Za-z0-9]+):(?: (.*))?$")
_DESCRIPTION = re.compile(r" *# -- (.*)")


def main(arguments: list[str]) -> int:
    """Write the files or, with ``--check``, print which are out of date. Return the exit status."""
    wanted = dict(outputs())
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in stale:
        if arguments != ["--check"]:
            path.write_text(wanted[path], "utf-8")
        print(f"{path.relative_to(CHART)} {'is out of date' if arguments else 'written'}")
    return 1 if stale and arguments else 0


def outputs() -> Iterator[tuple[Path, str]]:
    """Yield every generated file with its content."""
    for definition in custom_resource_definitions():
        text = yaml.safe_dump(definition, sort_keys=False, width=120)
        yield CHART / "files" / "crds" / f"{definition['spec']['names']['plural']}.yaml", text
    yield VALUES.page, VALUES.page_with(table_of((CHART / "values.yaml").read_text("utf-8")))


def table_of(values: str) -> str:
    """Return the table of the values in Markdown."""
    rows = (
        (f"`{path}`", f"`{default}`" if default else "", description)
        for path, default, description in described(values)
    )
    return table(("value", "default", "meaning"), rows)


def described(values: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, default and description of every value that has a description."""
    path: list[str] = []
    description = ""
    for line in values.splitlines():
        if found := _DESCRIPTION.match(line):
            description = found[1]
        elif found := _KEY.match(line):
            path[len(found[1]) // 2 :] = [found[2]]
            if description:
                yield ".".join(path), _shown(values, path), description
            description = ""


def _shown(values: str, path: list[str]) -> str:
    value = yaml.safe_load(values)
    for key in path:
        value = value[key]
    if value in (None, "", [], {}):
        return ""
    if isinstance(value, str):
        return value
    return yaml.safe_dump(value, default_flow_style=True, width=1000).strip().removesuffix("\n...")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
