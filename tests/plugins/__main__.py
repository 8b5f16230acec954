"""Score the suite of each plugin, with a change that repairs nothing and with the repair.

``python -m tests.plugins [NAME …]`` installs each from PyPI in an environment of its own, and writes results.md when no
name is given. The exit status is 1 when an outcome is wrong.
"""

import asyncio
import re
import sys
from importlib.metadata import distributions
from pathlib import Path

from dgym.errors import DgymError
from dgym.sandbox import SandboxSpec
from dgym.sandbox.local import LocalProvider, ensure_environment
from dgym.session.scoring import score_changes
from dgym.wire import Result
from dgym.workspace.patches import FileVersion
from tests.fakes.plans import make_plan
from tests.plugins.catalog import PLUGINS, Plugin
from tests.support.calc import BUGGY, FIXED

PAGE = Path(__file__).with_name("results.md")
HEAD = """\
# Outcomes on suites of popular plugins

Written by `python -m tests.plugins`. Right is: Unresolved without the repair, Resolved and clean with it.

| plugin | version | pytest | without the repair | with the repair |
|---|---|---|---|---|
"""


async def judge(plugin: Plugin, code: str, python: str) -> Result:
    """The outcome on a change of ``calc.py`` to ``code``."""
    verifier = await LocalProvider(SandboxSpec(python=python), kind="auto").verifier()
    try:
        for path, text in plugin.files.items():
            await verifier.write_file(path, text.encode())
        entrypoint = f"python -m pytest -q {plugin.options}".strip()
        plan = make_plan(entrypoint, {"calc.py": FileVersion(code.encode())}, timeout_seconds=90)
        return await score_changes(verifier, plan)
    finally:
        await verifier.stop()


def name_of(result: Result) -> str:
    """The text of a result in a row."""
    seen = result.integrity.seen if result.integrity is not None else ()
    if not result.resolved:
        return "Unresolved" if result.max_score and not seen else f"Unresolved: {result.message}"
    return "Resolved, clean" if not seen else f"Resolved, review: {seen[0].detail}"


def canonical(name: str) -> str:
    """The name of a distribution as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


async def row_of(plugin: Plugin) -> tuple[str, bool]:
    """The row of a plugin in the table, and whether both outcomes are right."""
    environment = await ensure_environment([plugin.name, *plugin.requirements])
    python = str(Path(environment) / "bin" / "python")
    found = [name_of(await judge(plugin, code, python)) for code in (BUGGY + "# looked at\n", FIXED)]
    site = [str(path) for path in Path(environment).glob("lib/python*/site-packages")]
    versions = {canonical(each.name): each.version for each in distributions(path=site)}
    cells = [plugin.name, versions[canonical(plugin.name)], versions["pytest"], *found]
    return f"| {' | '.join(cells)} |\n", found == ["Unresolved", "Resolved, clean"]


async def main(names: list[str]) -> int:
    """Play all plugins, or those with these names."""
    rows, wrong = [], 0
    for plugin in PLUGINS:
        if not names or plugin.name in names:
            try:
                row, right = await row_of(plugin)
            except (DgymError, OSError) as error:
                row, right = f"| {plugin.name} | | | {' '.join(str(error).split())[:200]} | |\n", False
            sys.stdout.write(row)
            sys.stdout.flush()
            rows.append(row)
            wrong += not right
    if not names:
        PAGE.write_text(HEAD + "".join(rows), "utf-8")
    return min(wrong, 1)


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(sys.argv[1:])))
