"""Headless Chromium, controlled with the DevTools protocol over a web socket."""

import asyncio
import base64
import contextlib
import itertools
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.required import absent

DEADLINE_SECONDS = 60.0
_PAUSE_SECONDS = 0.05
_KEYS = {"Enter": ("\r", 13), "Escape": ("", 27)}


def chromium() -> str:
    """The path of the browser."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        absent("browser", "no chromium on PATH (`hack/system-packages browser` installs it on Debian)")
    return found


@contextlib.contextmanager
def running_browser() -> Iterator[str]:
    """A browser with a separate profile. Yields the address of its DevTools."""
    with tempfile.TemporaryDirectory(prefix="dgym-browser-", ignore_cleanup_errors=True) as profile:
        command = [
            chromium(),
            "--headless=new",
            "--no-sandbox",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--hide-scrollbars",
            "--force-color-profile=srgb",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield _devtools(Path(profile, "DevToolsActivePort"), process)
        finally:
            process.terminate()
            process.wait(DEADLINE_SECONDS)


def _devtools(file: Path, process: "subprocess.Popen[bytes]") -> str:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"chromium ended with status {process.returncode}")
        with contextlib.suppress(FileNotFoundError, ValueError):
            port, path = file.read_text().split("\n")[:2]
            return f"ws://127.0.0.1:{port}{path}"
        time.sleep(_PAUSE_SECONDS)
    raise RuntimeError("chromium does not start")


class Page:
    """A tab. ``console`` has all log messages of pages, including violations of the content security policy."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session: str | None = None
        self.console: list[str] = []
        self.dialogs: list[str] = []

    async def open(self) -> None:
        """Create the tab, with separate cookies."""
        context = await self.call("Target.createBrowserContext", disposeOnDetach=True)
        made = await self.call("Target.createTarget", url="about:blank", browserContextId=context["browserContextId"])
        attached = await self.call("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return the answer."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        session = {} if self._session is None else {"sessionId": self._session}
        await self._socket.send_json({"id": number, "method": method, "params": parameters, **session})
        return await asyncio.wait_for(answer, DEADLINE_SECONDS)

    async def listen(self) -> None:
        """Receive answers and events until cancelled."""
        async for received in self._socket:
            message = received.json()
            if (answer := self._answers.pop(message.get("id"), None)) is not None:
                if "error" in message:
                    answer.set_exception(RuntimeError(str(message["error"])))
                else:
                    answer.set_result(message["result"])
                continue
            event, details = message.get("method"), message.get("params", {})
            if event == "Log.entryAdded":
                self.console.append(details["entry"]["text"])
            elif event in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
                self.console.append(str(details))
            elif event == "Page.javascriptDialogOpening":
                self.dialogs.append(details["message"])

    async def go(self, url: str) -> None:
        """Open an address and wait until it has loaded."""
        # Start from another document: if two addresses differ only after the #, the page would not be loaded again.
        await self.call("Page.navigate", url="about:blank")
        await self.call("Page.navigate", url=url)
        await self.until("location.href !== 'about:blank' && document.readyState === 'complete'")

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until the expression is true."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(RuntimeError):  # the page is being replaced
                if await self.evaluate(f"!!({expression})"):
                    return
            await asyncio.sleep(_PAUSE_SECONDS)
        raise AssertionError(f"never true: {expression}\n{await self.text()}")

    async def text(self, selector: str = "body") -> str:
        """The visible text of an element."""
        return str(await self.evaluate(f"document.querySelector({selector!r}).innerText"))

    async def click(self, selector: str) -> None:
        """Click an element as soon as it exists."""
        await self.until(f"document.querySelector({selector!r})")
        await self.evaluate(f"document.querySelector({selector!r}).click()")

    async def press(self, key: str) -> None:
        """Press a key after the page's script has run. The elements exist earlier."""
        await self.until("'ready' in document.documentElement.dataset")
        text, code = _KEYS.get(key, (key, ord(key[0])))
        about = {"key": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    async def look(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Set the size of the window and the colour scheme."""
        phone = width < 600
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, path: Path) -> None:
        """Write a PNG of the visible part of the page."""
        answer = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(answer["data"]))


@contextlib.asynccontextmanager
async def new_page(devtools: str) -> AsyncIterator[Page]:
    """A tab of the running browser."""
    async with aiohttp.ClientSession() as client, client.ws_connect(devtools, max_msg_size=0) as socket:
        page = Page(socket)
        listening = asyncio.create_task(page.listen())
        try:
            await page.open()
            yield page
        finally:
            listening.cancel()
