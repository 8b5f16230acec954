"""Tests of ``dgym ui`` with a cluster."""

import contextlib

from aiohttp import CookieJar
from aiohttp.test_utils import TestClient, TestServer

from dgym.cli.cluster.results import open_cluster
from dgym.cli.options import ClusterPlace
from dgym.ui._server import PageAccess, make_app
from tests.integration.cli.cluster.standin import RESOLVED, SYSTEM


async def open_pages(stack):
    """A client of ``dgym ui --cluster``."""
    library = await stack.enter_async_context(open_cluster(ClusterPlace(system_namespace=SYSTEM)))
    access = PageAccess()
    server = TestServer(make_app(library, access))
    client = await stack.enter_async_context(TestClient(server, cookie_jar=CookieJar(unsafe=True)))
    await client.get("/", params={"token": access.token})
    return client


def finished(reason):
    return {"reason": reason, "conditions": [{"type": "Finished", "status": "True"}]}


async def test_the_page_shows_episodes_and_stored_trajectories_of_a_cluster(cluster, stored):
    labels = {"dgym.dev/set": "nightly", "dgym.dev/arm": "pdb", "dgym.dev/sample": "3"}
    outcome = {"resolved": True, "score": 2, "maxScore": 2, "steps": 7}
    cluster.episode("done", labels=labels, outcome=outcome, attempt=1, **finished("Resolved"))
    cluster.episode("waits", uid="uid-2", labels=labels, reason="ImagePullFailed", message="no such image")
    metadata = {"name": "nightly", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
    cluster.objects["episodesets", "nightly"] = {"metadata": metadata, "status": {"total": 5}}
    stored("done", patch="+the repair\n", **RESOLVED)
    async with contextlib.AsyncExitStack() as stack:
        client = await open_pages(stack)
        home = await (await client.get("/index.html")).text()
        assert "<bdi>nightly</bdi>" in home
        assert "<b>1</b> of 5 done" in home
        listed = await (await client.get("/episodes.html?arm=pdb&sample=3")).text()
        assert "ImagePullFailed" in listed
        assert "2/2" in listed
        episode = await client.get("/episode/default/done/uid-1.html")
        assert "the repair" in await episode.text()
        same = await client.get("/episode/default/done/uid-1.html", headers={"If-None-Match": episode.headers["ETag"]})
        assert same.status == 304
        assert (await client.get("/file/default/done/uid-1/1/episode.log")).status == 200
        assert (await client.get("/file/default/waits/uid-2/1/episode.log")).status == 404


async def test_an_operator_that_does_not_answer_is_named(cluster):
    cluster.episode("done", **finished("Resolved"))
    cluster.error = b"connection refused"
    async with contextlib.AsyncExitStack() as stack:
        client = await open_pages(stack)
        episode = await client.get("/episode/default/done/uid-1.html")
        assert episode.status == 503
        assert "operator-0" in await episode.text()


async def test_the_page_reports_a_missing_right_to_read_results(cluster):
    cluster.episode("done", **finished("Resolved"))
    cluster.readers.clear()
    async with contextlib.AsyncExitStack() as stack:
        client = await open_pages(stack)
        assert "may not get episodes/results in namespace default" in await (await client.get("/index.html")).text()
        assert (await client.get("/episode/default/done/uid-1.html")).status == 200
