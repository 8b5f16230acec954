"""Real Prometheus, on loopback or in a cluster: responses to queries, and firing alerts."""

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.integration.monitoring.conftest import RULES, program

DEADLINE = 90.0
TIMING = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}


def hasty_rules() -> str:
    """The chart's rules, with alerts that fire after seconds."""
    text = re.sub(r"for: \d+m", "for: 1s", RULES.read_text("utf-8"))
    return text.replace("[15m]", "[5s]")


class Prometheus:
    """Client of a running Prometheus."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query, without those that are NaN, such as a quantile of an empty histogram."""
        async with self._session.get(f"{self._url}/api/v1/query", params={"query": expression}) as answer:
            body = await answer.json()
        assert body["status"] == "success", f"{expression}: {body}"
        result = body["data"]["result"]
        return [each for each in result if each["value"][1] != "NaN"]

    async def firing(self) -> set[tuple[str, str]]:
        """Name and reason of the alerts that fire."""
        async with self._session.get(f"{self._url}/api/v1/alerts") as answer:
            alerts = (await answer.json())["data"]["alerts"]
        labels = [each["labels"] for each in alerts if each["state"] == "firing"]
        return {(each["alertname"], each.get("reason", "")) for each in labels}

    async def ready(self) -> bool:
        """True if the server is ready."""
        try:
            async with self._session.get(f"{self._url}/-/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


@asynccontextmanager
async def running(directory: Path, targets: dict[str, int], *, namespace: str) -> AsyncIterator[Prometheus]:
    """Run Prometheus. It scrapes a loopback port for each component, and uses the chart's rules with short delays."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    directory.mkdir()
    rules = directory / "rules.yaml"
    rules.write_text(hasty_rules())
    jobs = [
        {
            "job_name": component,
            "static_configs": [
                {
                    "targets": [f"127.0.0.1:{number}"],
                    "labels": {"namespace": namespace, "pod": component, "component": component},
                }
            ],
        }
        for component, number in targets.items()
    ]
    config = directory / "prometheus.yaml"
    config.write_text(yaml.safe_dump({"global": TIMING, "rule_files": [str(rules)], "scrape_configs": jobs}))
    log = (directory / "log").open("wb")
    process = await asyncio.create_subprocess_exec(
        program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=log,
        stderr=log,
    )
    try:
        async with aiohttp.ClientSession() as session:
            server = Prometheus(session, f"http://127.0.0.1:{port}")
            end = time.monotonic() + DEADLINE
            while not await server.ready():
                assert process.returncode is None, (directory / "log").read_text()
                assert time.monotonic() < end, (directory / "log").read_text()
                await asyncio.sleep(0.1)
            yield server
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        log.close()
