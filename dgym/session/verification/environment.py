"""Environments that cannot run a task's tests, distinguished from bugs that were not repaired. Pure.

A run in which no test ran says nothing about the agent unless the untouched repository's tests run. A bug may keep
them from running, too: what the repository's own code raises is the bug, what is missing around it is not.
"""

import posixpath
import re
from collections.abc import Callable, Collection, Sequence

from dgym.sandbox import EntrypointResult, Mode
from dgym.wire import Observation

_NOT_STARTED = frozenset({126, 127})
_NOTHING_RAN = frozenset({2, 3, 4, 5, *_NOT_STARTED})
_TAIL_LINES = 20
_ERROR = re.compile(r"^(?:E\s+|INTERNALERROR>\s*)?((?:\w+\.)*\w*(?:Error|Exception)): (.*)$")
_PLACE = re.compile(r'^(?:E\s+|INTERNALERROR>\s*)?(?:File "(?P<quoted>[^"]+)", line \d+|(?P<short>\S+\.py):\d+:)')
_SHORT_PLACE = re.compile(r"^(\S+\.py):\d+$")
_MISSING_MODULE = re.compile(r"No module named ['\"]?([\w.]+)")
_NO_ASYNC_PLUGIN = "async def functions are not natively supported"
_ASYNC_PLUGINS = ("pytest-asyncio", "anyio", "pytest-trio", "pytest-twisted", "pytest-aiohttp")
_RAN = frozenset({"passed", "xpassed", "xfailed"})
_OTHER_DISTRIBUTIONS = {
    "attr": ("attrs",),
    "bs4": ("beautifulsoup4",),
    "crypto": ("pycryptodome",),
    "cv2": ("opencv_python", "opencv_python_headless"),
    "git": ("gitpython",),
    "pil": ("pillow",),
    "skimage": ("scikit_image",),
    "sklearn": ("scikit_learn",),
    "zmq": ("pyzmq",),
}
"""Distributions that are not called like the module that they install."""
_MISSING_AROUND = ("unrecognized arguments", "Missing required plugins", "Error importing plugin")
_WORD = re.compile(r"[A-Za-z0-9]+(?:[-_.][A-Za-z0-9]+)*")


def is_doubtful(mode: Mode, result: EntrypointResult) -> bool:
    """Whether ``result`` may be the environment's doing: nothing that counts has run."""
    if result.run.ended_by != "exit":
        return False
    report = result.report
    if mode is Mode.EXIT_STATUS:
        return report is not None and report.form == "shell" and result.run.exit_status in _NOT_STARTED
    return report is None or not report.outcomes or _lacks_async_plugin(result)


def _lacks_async_plugin(result: EntrypointResult) -> bool:
    """Whether no test passed, and all that failed are coroutines that pytest cannot run without a plugin."""
    if result.report is None or not _RAN.isdisjoint(result.report.outcomes.values()):
        return False
    lines = result.run.text.splitlines()
    explained = sum(_NO_ASYNC_PLUGIN in line and not line.startswith("FAILED ") for line in lines)
    failures = sum(line.startswith("___") and line.endswith("___") for line in lines)
    return explained >= max(1, failures - bool(result.run.truncated_bytes))


def suggests_doubt(observation: Observation) -> bool:
    """Whether an ``eval`` of the agent's workspace ended as one does whose tests cannot run."""
    score = observation.score
    return score is not None and score.score == 0 and observation.exit_status in _NOTHING_RAN


def environment_failure(
    mode: Mode,
    entrypoint: str,
    result: EntrypointResult,
    *,
    workspace: str,
    paths: Collection[str],
    is_fixed: Callable[[str], bool],
    declared: str = "",
    tests_follow: bool = False,
) -> str | None:
    """Why the environment cannot run the tests, from a run of the untouched repository; None when it can.

    Args:
        mode: How the task counts.
        entrypoint: The command that ran, for the message.
        result: The run. No agent had a part in it, so its output can be believed.
        workspace: The absolute path of the repository.
        paths: The files of the repository, and those that the task's solution adds.
        is_fixed: Whether no agent can change a path: a module that such a file lacks is the environment's fault.
        declared: The text of the files in which the repository names its dependencies.
        tests_follow: Whether scoring adds tests that the run did not have. Then a run without tests is not a failure.
    """
    if not is_doubtful(mode, result):
        return None
    lines = result.run.text.strip().splitlines()
    causes = []
    for number, line in enumerate(lines):
        if (found := _ERROR.match(line)) is None:
            continue
        module = _missing_module(found[1], found[2])
        if module is None and _is_of_others(lines[: number + 1], workspace, paths):
            causes.append(f"{found[1]}: {found[2]}")
            continue
        if module is None or _is_part(module, paths):
            return None
        place = _place_before(lines[:number], workspace)
        if place is not None and place in paths and not is_fixed(place) and not _is_declared(module, declared):
            return None
        causes.append(f"{found[1]}: {found[2]}")
    output = [line for line in lines if line.strip()][-_TAIL_LINES:]
    status = result.run.exit_status
    if _lacks_async_plugin(result):
        plugin = next((name for name in _ASYNC_PLUGINS if _is_declared(name, declared)), _ASYNC_PLUGINS[0])
        causes.append(f"the tests are coroutines, and no plugin of pytest runs them; install {plugin}")
    is_explained = causes or status in _NOT_STARTED or any(sign in line for line in lines for sign in _MISSING_AROUND)
    if tests_follow and not is_explained:
        return None
    ran = f"{entrypoint!r} exited with status {status} on the untouched repository"
    return "\n".join(
        [
            f"the environment cannot run the tests: {ran}",
            *output,
            causes[0] if causes else _without_error(lines, result),
        ]
    )


def _missing_module(kind: str, text: str) -> str | None:
    found = _MISSING_MODULE.search(text) if kind in ("ModuleNotFoundError", "ImportError") else None
    return found[1].partition(".")[0] if found is not None else None


def _is_part(module: str, paths: Collection[str]) -> bool:
    """Whether the repository has a module or package of this name, wherever it stands."""
    names = {f"{module}.py", module}
    return any(not names.isdisjoint(path.split("/")) for path in paths)


def _is_of_others(lines: Sequence[str], workspace: str, paths: Collection[str]) -> bool:
    """Whether ``lines`` end with a traceback and no entry of any traceback in them is a file of the repository."""
    named = [found["quoted"] or found["short"] for line in lines if (found := _PLACE.match(line.strip()))]
    inside = workspace.rstrip("/") + "/"
    places = [posixpath.normpath(posixpath.join(workspace, name)).removeprefix(inside) for name in named]
    short = [found[1] for line in lines if (found := _SHORT_PLACE.match(line.strip()))]
    return bool(places) and not any(place in paths for place in (*places, *short)) and inside not in lines[-1]


def _place_before(lines: list[str], workspace: str) -> str | None:
    """The file that the innermost entry of the traceback above names, relative to the workspace."""
    for line in reversed(lines):
        if (found := _PLACE.match(line.strip())) is not None:
            path = posixpath.normpath(posixpath.join(workspace, found["quoted"] or found["short"]))
            return path.removeprefix(workspace.rstrip("/") + "/")
    return None


def _is_declared(module: str, declared: str) -> bool:
    words = {word.lower().replace("-", "_").replace(".", "_") for word in _WORD.findall(declared)}
    name = module.lower().replace("-", "_")
    others = (f"py{name}", f"{name}py", f"python_{name}", f"py_{name}", *_OTHER_DISTRIBUTIONS.get(name, ()))
    return not words.isdisjoint((name, *others))


def _without_error(lines: list[str], result: EntrypointResult) -> str:
    errors = [line for line in lines if line.startswith(("ERROR", "error:")) or ": error: " in line]
    if errors:
        return errors[-1]
    if result.run.exit_status in _NOT_STARTED and lines:
        return lines[-1]
    return "no test was collected"
