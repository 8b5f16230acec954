"""Tests of the server's answers for real results, without a browser."""

import json
import re
import shutil
from datetime import datetime

import pytest
from markupsafe import escape
from yarl import URL

from dgym.results import open_library
from dgym.ui._listing import overviews
from tests.integration.ui.serving import served


async def text(client, path, status=200, **kwargs):
    response = await client.get(path, **kwargs)
    assert response.status == status, await response.text()
    return await response.text()


async def first_link(client, path, prefix="/episode/"):
    return re.search(rf'href="({prefix}[^"]*)"', await text(client, path))[1].replace("&amp;", "&")


async def test_runs_episodes_and_an_episode(results):
    async with served(results) as client:
        home = await text(client, "/index.html")
        assert "<bdi>calc</bdi>" in home
        assert "in <bdi>nightly</bdi>" in home
        assert "<b>4</b> of 4 done" in home
        listed = await text(client, "/episodes.html?run=nightly&set=calc&arm=repair")
        assert listed.count('class="row-link"') == 2
        episode = await text(client, await first_link(client, "/episodes.html?arm=repair"))
        assert "total += b" in episode
        assert "stands at" in episode
        assert 'id="step-8"' in episode
        assert 'id="patch"' in episode


async def test_each_step_has_the_request_before_it_and_each_message_is_in_the_page_once(asked):
    results, sent = asked
    async with served(results) as client:
        page = await text(client, await first_link(client, "/episodes.html"))
    requests = re.findall(r'class="request" data-sent="([^"]*) " data-new="([^"]*) ".*?soft">(.*?)</span>', page)
    assert [(ranges, new) for ranges, new, _ in requests] == [
        ("0-1", "0 1"),
        ("0-4", "2 3 4"),
        ("0-6", "5 6"),
        ("0-8", "7 8"),
    ]
    assert re.fullmatch(r"5 messages, 3 new · [\d,]+ tokens, [\d,]+ cached · \d+ out", requests[1][2])
    assert re.findall(r'A call of the reply at <a href="([^"]*)">step (\d)</a>', page)[0][1] == "1"
    messages = re.findall(r'<details class="sent" id="message-(\d)">(.*?)</details>', page, re.DOTALL)
    assert [number for number, _ in messages] == [str(number) for number in range(9)]
    for message, (_, shown) in zip(sent[-1]["messages"], messages, strict=True):
        assert f"<b>{message['role']}</b>" in shown
        assert str(escape(message["content"] or "")) in shown
        assert message.get("reasoning_content", "") in shown
        for call in message.get("tool_calls", ()):
            assert f"call {call['function']['name']}" in shown
            assert str(escape(call["function"]["arguments"])) in shown


async def test_lists_are_filtered_and_sorted_by_the_address(results):
    async with served(results) as client:
        assert (await text(client, "/episodes.html?state=Unresolved")).count('class="row-link"') == 2
        assert (await text(client, "/episodes.html?q=no+such+name")).count('class="row-link"') == 0
        by_steps = re.findall(r'<td class="num">(\d+)</td>', await text(client, "/episodes.html?sort=-steps"))
        assert by_steps == ["8", "8", "4", "4"]


async def test_arms_are_compared_by_task_and_their_episodes_step_by_step(results):
    async with served(results) as client:
        arms = "/compare.html?a=arm%3Dgive-up&b=arm%3Drepair"
        compared = await text(client, arms)
        assert "B is better at 1, worse at 0 and equal at 0" in compared
        assert "B - A: +100.0 points (too few tasks). Randomization test: p = 1." in compared
        pair = await text(client, await first_link(client, arms, "/pair.html"))
        assert "Their first 2 calls are the same" in pair
        assert pair.index("<bdi>view check.py</bdi>") < pair.index("<bdi>pdb b calc.py:3</bdi>")
        assert pair.count("at step 1</span>") == 2


async def test_tasks_of_only_one_side_are_reported_separately(results, tmp_path):
    shutil.copytree(results, tmp_path / "results")
    for number, path in enumerate(tmp_path.glob("results/nightly/local/calc-*/*/1/result.json")):
        result = json.loads(path.read_bytes())
        path.write_text(json.dumps({**result, "task": f"{result['arm']}-{number}"}))
    async with served(tmp_path / "results") as client:
        compared = await text(client, "/compare.html?a=arm%3Dgive-up&b=arm%3Drepair")
        assert "cannot be compared. Only A has a score on 2. Only B has a score on 2." in compared


async def test_episodes_have_their_run_and_the_time_of_their_start(results, tmp_path):
    copy = tmp_path / "results"
    shutil.copytree(results, copy, copy_function=shutil.copyfile)
    starts = ["2001-02-03T12:00:00Z", "2004-05-06T12:00:00Z", "2003-02-03T12:00:00Z", "2002-02-03T12:00:00Z"]
    for start, path in zip(starts, sorted(copy.glob("nightly/local/calc-*/*/1/result.json")), strict=True):
        path.write_text(json.dumps({**json.loads(path.read_bytes()), "startTime": start}))
    async with served(copy) as client:
        listed = await text(client, "/episodes.html?sort=started")
        assert listed.count("<td><bdi>nightly</bdi></td>") == 4
        assert re.findall(r'nowrap">(\d{4})-\d\d-\d\d [\d:]{8}<', listed) == ["2001", "2002", "2003", "2004"]
        assert re.findall(r'soft">(\d{4})-', await text(client, "/index.html")) == ["2004"]
        assert ">Changed<" not in listed


async def test_the_rate_counts_the_episodes_that_ended_since_the_run_began(results, tmp_path):
    copy = tmp_path / "results"
    shutil.copytree(results, copy, copy_function=shutil.copyfile)  # every file is new
    plan = next(copy.glob("nightly/.dgym-plan-*.json"))
    planned = json.loads(plan.read_bytes())
    planned["sets"]["calc"].append("local/calc-more/0123456789ab")
    ends = []
    for path in copy.glob("nightly/local/calc-*/*/1/result.json"):
        result = json.loads(path.read_bytes())
        ends.append(datetime.fromisoformat(result["startTime"]).timestamp() + result["durationSeconds"])
    for began, counted in ((max(ends) + 10, 0), (min(ends) - 10, 4)):
        plan.write_text(json.dumps({**planned, "began": began}))
        library = open_library(str(copy))
        await library.refresh()
        (run,) = overviews(library, began + 60)
        assert run.rate == pytest.approx(counted / 60)


async def test_the_token_is_asked_for_and_the_cookie_is_for_this_site_alone(results):
    async with served(results, login=False) as client:
        await text(client, "/index.html", status=401)
        await text(client, "/index.html?token=guess", status=401)
        answer = await client.get("/index.html", params={"token": client.access.token}, allow_redirects=False)
        assert answer.status == 303
        assert answer.headers["Location"] == "/index.html"
        assert "HttpOnly" in answer.headers["Set-Cookie"]
        assert "SameSite=Strict" in answer.headers["Set-Cookie"]
        await text(client, "/index.html")


@pytest.mark.attack("page")
async def test_another_name_for_this_host_is_refused(results):
    async with served(results) as client:
        await text(client, "/index.html", status=403, headers={"Host": "rebound.example"})
        await text(client, "/index.html", status=403, headers={"Host": "["})
        await text(client, "/index.html", headers={"Host": "localhost:1"})


@pytest.mark.attack("page")
async def test_only_get_requests_are_allowed(results):
    async with served(results) as client:
        assert (await client.post("/index.html")).status == 405
        assert (await client.delete("/index.html")).status == 405


@pytest.mark.attack("page")
@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "..%2f..%2fetc%2fpasswd", "/etc/passwd"]
)
async def test_paths_out_of_the_results_are_not_found(results, path):
    async with served(results) as client:
        for prefix in ("/file/", "/episode/", "/file/nightly/"):
            url = URL(str(client.make_url("/")).rstrip("/") + prefix + path, encoded=True)
            assert (await client.session.get(url)).status == 404


@pytest.mark.attack("page")
async def test_links_in_the_results_are_not_followed(results, tmp_path):
    copy = tmp_path / "results"
    shutil.copytree(results, copy)
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    (patch,) = copy.glob("nightly/local/calc-repair-0/*/1/patch.diff")
    patch.unlink()
    patch.symlink_to(secret)
    (copy / "elsewhere").symlink_to(results)
    async with served(copy) as client:
        assert (await text(client, "/episodes.html")).count('class="row-link"') == 4
        episode = await first_link(client, "/episodes.html?arm=repair")
        assert "s3cret" not in await text(client, episode)
        file = episode.partition("?")[0].removesuffix(".html").replace("/episode/", "/file/")
        await text(client, f"{file}/1/patch.diff", status=404)


@pytest.mark.attack("page")
async def test_files_are_served_as_plain_text(results):
    async with served(results) as client:
        file = (await first_link(client, "/episodes.html")).partition("?")[0].removesuffix(".html")
        answer = await client.get(f"{file.replace('/episode/', '/file/')}/1/result.json")
        assert answer.content_type == "text/plain"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; sandbox")


async def test_unchanged_pages_are_answered_with_304(results):
    async with served(results) as client:
        for path in ("/index.html", "/episodes.html", await first_link(client, "/episodes.html")):
            tag = (await client.get(path)).headers["ETag"]
            assert (await client.get(path, headers={"If-None-Match": tag})).status == 304
