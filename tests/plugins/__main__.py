"""Plays the suite of each plugin through the verdict, with a change that repairs nothing and with the repair.

``python -m tests.plugins [NAME …]`` installs each from PyPI in an environment of its own, and writes results.md when no
name is given. The exit status is 1 when a verdict is wrong.
"""

import asyncio
import re
import sys
from importlib.metadata import distributions
from pathlib import Path

from dgym.errors import DgymError
from dgym.sandbox import SandboxSpec
from dgym.sandbox.local import LocalProvider, ensure_environment
from dgym.session.verification import Verdict, VerificationPlan, verify
from dgym.workspace.patches import FileVersion
from tests.plugins.catalog import BROKEN, PLUGINS, REPAIRED, Plugin

PAGE = Path(__file__).with_name("results.md")
HEAD = """\
# Verdicts on suites of popular plugins

Written by `python -m tests.plugins`. Right is: Unresolved without the repair, Resolved and clean with it.

| plugin | version | pytest | without the repair | with the repair |
|---|---|---|---|---|
"""


async def judge(plugin: Plugin, code: str, python: str) -> Verdict:
    """The verdict on a change of ``calc.py`` to ``code``."""
    verifier = await LocalProvider(SandboxSpec(python=python), kind="auto").verifier()
    try:
        for path, text in plugin.files.items():
            await verifier.write_file(path, text.encode())
        entrypoint = f"python -m pytest -q {plugin.options}".strip()
        plan = VerificationPlan(
            entrypoint=entrypoint, changed={"calc.py": FileVersion(code.encode())}, timeout_seconds=90
        )
        return await verify(verifier, plan)
    finally:
        await verifier.stop()


def name_of(verdict: Verdict) -> str:
    """What a row shows of a verdict."""
    if not verdict.resolved:
        return "Unresolved" if verdict.score.max_score and not verdict.seen else f"Unresolved: {verdict.message}"
    return "Resolved, clean" if not verdict.seen else f"Resolved, review: {verdict.seen[0].detail}"


def canonical(name: str) -> str:
    """The name of a distribution as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


async def row_of(plugin: Plugin) -> tuple[str, bool]:
    """The row of a plugin in the table, and whether both verdicts are right."""
    environment = await ensure_environment([plugin.name, *plugin.requirements])
    python = str(Path(environment) / "bin" / "python")
    found = [name_of(await judge(plugin, code, python)) for code in (BROKEN + "# looked at\n", REPAIRED)]
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
