"""Tests of the page in a real browser: its contents, live updates, and scripts that it must not run."""

import asyncio
import shutil
import subprocess

import pytest

from dgym.results import open_library
from dgym.ui import export
from tests.integration.ui.conftest import write_set
from tests.integration.ui.hostile import write_hostile
from tests.integration.ui.serving import served
from tests.support.browser import DEADLINE_SECONDS, new_page, running_browser
from tests.support.command import DGYM

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def devtools():
    with running_browser() as address:
        yield address


@pytest.fixture
async def page(devtools):
    async with new_page(devtools) as opened:
        yield opened


async def open_page(page, client, path="/index.html"):
    await page.go(client.access.url(client.port))
    await page.go(f"http://127.0.0.1:{client.port}{path}")


async def test_a_running_set_is_followed_without_loading_the_page_again(page, tmp_path):
    (tmp_path / "results").mkdir()
    async with served(tmp_path / "results") as client:
        await open_page(page, client)
        await page.evaluate("window.same = true")
        running = subprocess.Popen([DGYM, *write_set(tmp_path, tmp_path / "results")], cwd=tmp_path)
        try:
            await page.until("/^[0-3] of 4 done$/.test(document.querySelector('.progress')?.innerText)")
            await page.until("document.querySelector('.progress')?.innerText === '4 of 4 done'")
        finally:
            running.wait(60)
        assert "2 resolved" in await page.text(".run")
        assert await page.evaluate("window.same")


async def test_steps_of_a_running_episode_appear(page, results, tmp_path):
    shutil.copytree(results, tmp_path / "results")
    (attempt,) = tmp_path.glob("results/nightly/local/calc-repair-0/*/1")
    (attempt / "result.json").rename(tmp_path / "result.json")
    lines = (attempt / "trajectory.jsonl").read_bytes().splitlines(keepends=True)
    (attempt / "trajectory.jsonl").write_bytes(b"".join(lines[:4]))
    async with served(tmp_path / "results") as client:
        await open_page(page, client, "/episodes.html?state=Running")
        await page.click("a.row-link")
        await page.until("document.querySelectorAll('.step').length === 3")
        assert "The episode goes on" in await page.text("#more")
        (attempt / "trajectory.jsonl").write_bytes(b"".join(lines))
        (tmp_path / "result.json").rename(attempt / "result.json")
        await page.until("document.querySelectorAll('.step').length === 9 && document.getElementById('patch')")
        await page.until("document.querySelector('#facts .state').innerText === 'Resolved'")


async def test_from_the_list_to_a_step_and_the_patch_by_keys(page, results):
    async with served(results) as client:
        await open_page(page, client, "/episodes.html")
        await page.evaluate("document.querySelector('select[name=arm]').value = 'repair'")
        await page.evaluate("document.querySelector('select[name=arm]').form.requestSubmit()")
        await page.until("document.getElementById('found')?.innerText === '2'")
        await page.press("j")
        await page.press("Enter")
        await page.until("document.querySelector('#step-8')")
        for _ in range(4):
            await page.press("l")
        await page.until("location.hash === '#step-3' || location.hash === '#step-4'")
        await page.press("h")
        await page.until("location.hash === '#step-2' || location.hash === '#step-3'")
        await page.press("p")
        await page.until("document.getElementById('patch').getBoundingClientRect().top < innerHeight")
        assert "+    total += b" in await page.text("#patch")
        first = await page.evaluate("location.pathname")
        await page.press("L")
        await page.until(f"location.pathname !== {first!r} && document.querySelector('.step')")
        await page.press("H")
        await page.until(f"location.pathname === {first!r}")


async def test_a_request_shows_its_messages_and_marks_new_messages(page, asked):
    results, sent = asked
    async with served(results) as client:
        await open_page(page, client, "/episodes.html")
        await page.click("a.row-link")
        await page.until("document.querySelectorAll('.step .request').length === 4")
        for number, body in enumerate(sent):
            request = f"document.querySelectorAll('.request')[{number}]"
            await page.evaluate(f"{request}.open = true")
            await page.until(f"{request}.querySelectorAll('.sent').length === {len(body['messages'])}")
            await page.evaluate(f"{request}.querySelectorAll('.sent').forEach((each) => {{ each.open = true }})")
            await page.until(f"[...{request}.querySelectorAll('.sent')].every((each) => each.children.length > 1)")
            shown = await page.evaluate(f"[...{request}.querySelectorAll('.sent')].map((each) => each.innerText)")
            for message, text in zip(body["messages"], shown, strict=True):
                assert message["role"] in text
                assert (message["content"] or "").strip() in text
                assert message.get("reasoning_content", "") in text
            new = await page.evaluate(f"[...{request}.querySelectorAll('li')].map((each) => each.className)")
            before = len(sent[number - 1]["messages"]) if number else 0
            assert new == [""] * before + ["new"] * (len(body["messages"]) - before)
        for width in (1280, 390):
            await page.look(width=width)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await page.evaluate("document.getElementById('step-1').classList.add('now')")
        await page.press("m")
        await page.until("!document.querySelector('#step-1 .request').open")
        assert await page.evaluate("window.hacked") is None
        assert page.console == []


async def test_an_address_of_a_step_shows_it(page, results):
    async with served(results) as client:
        await open_page(page, client, "/episodes.html?arm=repair")
        link = await page.evaluate("document.querySelector('a.row-link').getAttribute('href')")
        await page.go(f"http://127.0.0.1:{client.port}{link}#step-6")
        await page.until("Math.abs(document.getElementById('step-6').getBoundingClientRect().top) < innerHeight / 2")


async def test_two_arms_are_compared(page, results):
    async with served(results) as client:
        await open_page(page, client, "/compare.html")
        assert "Randomization test: p = 1" in await page.text("main")
        await page.click("a.row-link")
        await page.until("document.getElementById('parted')")
        text = await page.text("#parted")
        assert "pdb b calc.py:3" in text
        assert "view check.py" in text


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
async def test_no_page_is_wider_than_the_window(page, results, width, dark, tmp_path):
    async with served(results) as client:
        await open_page(page, client)
        await page.look(width=width, dark=dark)
        await page.go(f"http://127.0.0.1:{client.port}/episodes.html")
        episode = await page.evaluate("document.querySelector('a.row-link').getAttribute('href')")
        for path in ("/index.html", "/episodes.html", "/compare.html", episode):
            await page.go(f"http://127.0.0.1:{client.port}{path}")
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.console == []


@pytest.mark.parametrize("names", ["of this test", "hostile"])
async def test_state_and_score_are_visible_on_a_telephone(page, results, names, tmp_path):
    if names == "hostile":
        write_hostile(results := tmp_path / "results")
    async with served(results) as client:
        await open_page(page, client)
        await page.look(width=390)
        await page.go(f"http://127.0.0.1:{client.port}/episodes.html")
        for label in ("State", "Score"):
            column = f"[...document.querySelectorAll('th')].findIndex((each) => each.innerText === {label!r})"
            edges = await page.evaluate(
                f"[...document.querySelectorAll('tr')].map("
                f"(row) => row.children[{column}].getBoundingClientRect().right)"
            )
            assert edges
            assert max(edges) <= 390, label


async def test_hostile_results_are_shown_as_text(page, tmp_path):
    write_hostile(tmp_path / "results")
    async with served(tmp_path / "results") as client:
        await open_page(page, client)
        for path in ("/index.html", "/episodes.html", "/compare.html"):
            await page.go(f"http://127.0.0.1:{client.port}{path}")
            assert await page.evaluate(
                "window.hacked === undefined && !document.querySelector('main script, img, [onfocus]')"
            )
        await page.go(f"http://127.0.0.1:{client.port}/episodes.html")
        await page.click("a.row-link")
        await page.until("document.querySelectorAll('.step').length === 5")
        await page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        await page.until("document.querySelectorAll('.messages .sent').length > 50")
        await page.evaluate("document.querySelectorAll('.messages .sent').forEach((each) => { each.open = true })")
        await page.until("[...document.querySelectorAll('.messages .sent')].every((each) => each.children.length > 1)")
        assert await page.text("#step-1 .messages") != ""
        shown = await page.text("#step-1")
        assert "<script>window.hacked = 1</script>" in shown
        assert "\\x1b]8;;javascript" in shown
        assert "user\\u202e\\u2066// check" in shown
        assert "{{ 7 * 7 }}" in shown
        assert "hidden" in shown
        links = "[...document.links].every((link) => ['http:', 'about:'].includes(new URL(link.href).protocol))"
        assert await page.evaluate(links)
        assert await page.evaluate("document.getElementById('step-4').innerText.length < 300000")
        for width in (1280, 390):
            await page.look(width=width)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
        assert await page.evaluate("window.hacked") is None
        assert await page.evaluate("!document.querySelector('main script, img, [onfocus], [onload], [style]')")
        assert page.dialogs == []
        assert page.console == []


async def test_the_policy_stops_a_script_that_escaping_would_have_missed(page, results):
    async with served(results) as client:
        await open_page(page, client)
        await page.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 1\">')"
        )
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not page.console:
                await page.evaluate("new Promise(requestAnimationFrame)")
        assert any("Content Security Policy" in text for text in page.console)
        assert await page.evaluate("window.hacked") is None


async def test_an_exported_bundle_works_from_the_disk(page, results, tmp_path):
    await export(open_library(str(results)), tmp_path / "bundle")
    await page.go((tmp_path / "bundle" / "index.html").as_uri())
    await page.click("a.row-link")
    await page.until("document.querySelectorAll('a.row-link').length === 4")
    await page.press("j")
    await page.press("Enter")
    await page.until("document.querySelector('.step')")
    await page.press("l")
    await page.until("location.hash.startsWith('#step-')")
    await page.press("L")
    await page.until("document.querySelector('.step') && !location.hash")
    assert page.console == []
