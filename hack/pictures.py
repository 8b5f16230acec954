"""Writes the pictures of the pages to docs/pictures: diagrams, and screenshots of ``dgym ui``, light and dark.

python -m hack.pictures             write all pictures; needs Chromium
python -m hack.pictures diagrams    only the diagrams; needs npm too
python -m hack.pictures ui          only the screenshots

A diagram is a block ``mermaid`` of a page. Its file is named by the digest of the block, and the site has the file in
place of the block, so that a reader's browser loads nothing from elsewhere. Screenshots show episodes with the scripted
models of the tests.
"""

import asyncio
import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hack.site import DIAGRAM, THEMES, diagram_path
from tests.fakes.openai_server import FakeOpenAI
from tests.support.browser import Page, new_page, running_browser

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
MERMAID = "mermaid@11.12.0"
MERMAID_SHA256 = "07e37dfa97b337ccc85365d57eddf99b9706f09db3b59b260d0333b23b343c4b"
"""Digest of ``dist/mermaid.min.js`` in the package."""
STYLES = {"light": "neutral", "dark": "dark"}
"""Themes of Mermaid."""
WIDTH = 1280
DGYM = str(Path(sys.executable).with_name("dgym"))
TASKS = ("rolling-usage", "sheet-undo", "order-book", "timesheet")
ARMS = (("debug", "debug_agent", "debugger"), ("rewrite", "rewrite_agent", "rewriter"))
"""Name, agent and model of each arm."""


def main(names: list[str]) -> int:
    """Write the pictures. Return the exit status."""
    makers = {"diagrams": write_diagrams, "ui": write_screenshots}
    if unknown := set(names) - makers.keys():
        print(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(makers)}", file=sys.stderr)
        return 2
    PICTURES.mkdir(exist_ok=True)
    with running_browser() as devtools:
        for name in names or makers:
            asyncio.run(makers[name](devtools))
    return 0


async def write_diagrams(devtools: str) -> None:
    """Render the diagrams of all pages, and remove files of earlier diagrams."""
    wanted = set()
    async with new_page(devtools) as page:
        await page.evaluate(await asyncio.to_thread(mermaid))
        for source in diagrams():
            for theme, style in STYLES.items():
                path = ROOT / "docs" / diagram_path(source, theme)
                path.write_text(await drawing(page, source, style), "utf-8")
                wanted.add(path)
    for path in set(PICTURES.glob("diagram-*.svg")) - wanted:
        path.unlink()


def diagrams() -> Iterator[str]:
    """Yield the sources of the diagrams of README and of the pages."""
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))):
        yield from DIAGRAM.findall(page.read_text("utf-8"))


def mermaid() -> str:
    """Return Mermaid's program from npm.

    Raises:
        RuntimeError: It is not the program that was pinned.
    """
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["npm", "pack", "--silent", MERMAID], cwd=directory, check=True, stdout=subprocess.DEVNULL)
        (package,) = Path(directory).iterdir()
        with tarfile.open(package) as archive:
            file = archive.extractfile("package/dist/mermaid.min.js")
            program = b"" if file is None else file.read()
    if hashlib.sha256(program).hexdigest() != MERMAID_SHA256:
        raise RuntimeError(f"{MERMAID} has another mermaid.min.js than the pinned one")
    return program.decode()


async def drawing(page: Page, source: str, theme: str) -> str:
    """Return a diagram as SVG of a fixed size, with labels that an ``img`` element can show."""
    settings = {
        "startOnLoad": False,
        "theme": theme,
        "fontFamily": "sans-serif",
        "htmlLabels": False,
        "flowchart": {"htmlLabels": False, "useMaxWidth": False},
    }
    await page.evaluate(f"mermaid.initialize({json.dumps(settings)})")
    return str(await page.evaluate(f"mermaid.render('diagram', {json.dumps(source)}).then(drawn => drawn.svg)")) + "\n"


async def write_screenshots(devtools: str) -> None:
    """Run episodes of two arms, and take pictures of the pages that show them."""
    with tempfile.TemporaryDirectory() as directory:
        await asyncio.to_thread(run_episodes, Path(directory))
        command = (DGYM, "ui", "results", "--port", "0")
        server = await asyncio.create_subprocess_exec(*command, cwd=directory, stdout=subprocess.PIPE)
        try:
            url = (await server.stdout.readline()).decode().strip() if server.stdout else ""
            async with new_page(devtools) as page:
                for theme in THEMES:
                    await take(page, url, theme)
        finally:
            server.terminate()
            await server.wait()


async def take(page: Page, url: str, theme: str) -> None:
    """Take the pictures of one theme. The pages are ready when they have the elements that are waited for."""
    start = url.partition("?")[0]
    await page.look(width=WIDTH, height=510, dark=theme == "dark")
    await page.go(url)
    await page.go(f"{start}episodes.html")
    await page.until(f"document.querySelectorAll('a.row-link').length === {len(TASKS) * len(ARMS)}")
    await save(page, f"ui-episodes-{theme}")
    await page.go(f"{start}compare.html")
    await page.until("document.querySelector('a[href*=\"pair.html\"]')")
    await save(page, f"ui-compare-{theme}")
    await page.look(width=WIDTH, height=800, dark=theme == "dark")
    await page.go(f"{start}episodes.html")
    await page.click("a.row-link")
    await page.until("document.querySelector('#step-6')")
    await page.evaluate("location.hash = '#step-6'")
    await page.until("document.querySelector('#step-6').getBoundingClientRect().top < 100")
    await save(page, f"ui-step-{theme}")


def run_episodes(directory: Path) -> None:
    """Run both arms on some tasks of mini_nightmare, with results in ``directory/results``."""
    with FakeOpenAI().in_thread() as server:
        settings = {"endpoint": server.url, "api_key": "k", "input_price": 2, "output_price": 8}
        models = {model: {"model": model, **settings} for _, _, model in ARMS}
        Path(directory, "llm.yaml").write_text(json.dumps(models))
        arms = [{"name": name, "agent": {"name": agent, "model": model}} for name, agent, model in ARMS]
        changes = {"set.tasks": [{"name": task} for task in TASKS], "set.arms": arms}
        options = [part for path, value in changes.items() for part in ("-p", f"{path}={json.dumps(value)}")]
        command = [DGYM, "run", "--bundled", "mini_nightmare", "--llm-config", "llm.yaml", *options]
        subprocess.run(command, cwd=directory, check=True)


async def save(page: Page, name: str) -> None:
    """Write what is in view, as WebP, which takes half of the bytes of PNG."""
    answer = await page.call("Page.captureScreenshot", format="webp", quality=80)
    (PICTURES / f"{name}.webp").write_bytes(base64.b64decode(answer["data"]))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
