"""The record of one attempt in the results store. It is written during the episode and read to resume the episode."""

import asyncio
import contextlib
import io
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.errors import Superseded
from dgym.results._attempts import (
    GIVEN_UP,
    INLINE_PATCH_LIMIT,
    StoredResult,
    TimedStep,
    TrajectoryHeader,
    UnansweredStep,
    decode_result,
    parse_trajectory,
)
from dgym.results._store import (
    IN_FLIGHT,
    LOG,
    PATCH,
    RESULT,
    TRAJECTORY,
    DirectoryStore,
    ResultsStore,
    StoreUnavailable,
)
from dgym.wire import Step, ToolCall
from dgym.wire.outcome import Provenance

_log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_LAST_SAVE_SECONDS = 2.0
_IN_FLIGHT_SECONDS = 0.5
"""A step that takes longer is saved before its observation arrives. Most steps are faster and need no extra file."""


class Record:
    """The files of one attempt below ``path`` of the store.

    In a store on a local disk, ``write`` appends each line before it returns. The line survives a crash of the process,
    but possibly not of the machine: an fsync would take longer than most steps. For other stores the lines are kept in
    memory and ``keep_saving`` writes them in the background, so steps do not wait for the store. ``finish`` stores the
    rest.

    Args:
        store: The results store.
        path: The directory of the attempt, relative to the root of the store.
        log: Returns the log of the episode, which is stored with the result. None if the log is written elsewhere.
        unavailable: Called with each failure of the store, and with None when the store answers again.
        longest_pause_seconds: Maximum pause between two tries. None: the first failure is raised.
    """

    def __init__(
        self,
        store: ResultsStore,
        path: str,
        log: Callable[[], str] | None = None,
        *,
        unavailable: Callable[[StoreUnavailable | None], None] = lambda _: None,
        longest_pause_seconds: float | None = None,
    ) -> None:
        self._store = store
        self._path = path
        self._log = log
        self._unavailable = unavailable
        self._longest_pause_seconds = longest_pause_seconds
        self._lines = bytearray()
        self._written_at_once = 0
        self._saved = 0
        self._timed = False
        self._version: str | None = None
        self._unsaved_steps = 0
        self._changed = asyncio.Event()
        self.provenance: Provenance | None = None
        """Part of the header, which is written with the first step or at the end."""
        self._unwritten: list[TrajectoryHeader | TimedStep] = []
        """The header and the steps of an earlier attempt that are not written yet."""
        self.unanswered: UnansweredStep | None = None
        """The step that an earlier agent pod had sent after the steps that ``load`` returned."""
        self._in_flight: UnansweredStep | None = None
        self._in_flight_saved = 0
        self._saving_soon: asyncio.TimerHandle | None = None
        self._saving = asyncio.Lock()
        self._began = time.monotonic()
        self._encoder = msgspec.json.Encoder()

    @classmethod
    def new(cls, directory: Path, path: str) -> Self:
        """The record of a new attempt at the episode ``path`` in a results directory on a local disk."""
        store = DirectoryStore(directory, local=True)
        return cls(store, f"{path}/{store.new_attempt(path)}")

    @property
    def attempt(self) -> int:
        """The number of the attempt."""
        return int(self._path.rpartition("/")[2])

    @property
    def uri(self) -> str:
        """The URI of the attempt's directory."""
        return self._store.uri(self._path)

    async def result(self) -> StoredResult | None:
        """The stored result, or None."""
        return await self._retry_until_answered(self._result)

    async def patch(self) -> bytes:
        """The stored patch, or empty bytes."""
        return await self._retry_until_answered(lambda: self._store.read(self._place(PATCH))) or b""

    async def _result(self) -> StoredResult | None:
        data = await self._store.read(self._place(RESULT))
        return None if data is None else decode_result(data)

    async def give_up(self) -> StoredResult | None:
        """Give up the attempt, so that no process can store a result for it from now on.

        This creates ``result.json``, and the store accepts only the first process that creates the file.

        Returns:
            The result if one has been stored before. Then the attempt is not given up. Otherwise None.
        """
        return await self._retry_until_answered(self._give_up)

    async def _give_up(self) -> StoredResult | None:
        place = self._place(RESULT)
        await self._store.create(place, GIVEN_UP)
        data = await self._store.read(place)
        if data == GIVEN_UP:
            return None
        result = decode_result(data or b"")
        if result is None:
            raise StoreUnavailable(f"{self._store.uri(place)} is being written, or cannot be read")
        return result

    def begin(self, header: TrajectoryHeader) -> None:
        """Begin the trajectory of a new attempt and start to measure its duration."""
        self._timed = True
        self._unwritten = [header]
        self._store.append_at_once(self._place(TRAJECTORY), b"", size=0)  # Raises if another process has written it.

    async def load(self, header: TrajectoryHeader, earlier: Sequence[TimedStep] = ()) -> tuple[TimedStep, ...]:
        """Return the steps that an earlier agent pod wrote, and set ``unanswered`` to the step that it had sent last.

        If the trajectory does not exist, a new one begins with ``header`` and the steps of an ``earlier`` attempt.
        """
        data, steps, self.unanswered = await self._read()
        if steps is None:
            self._unwritten = [header, *earlier]
            self._continue_clock(earlier)
            return tuple(earlier)
        whole = data[: data.rfind(b"\n") + 1]
        self._lines += whole
        # 0 makes the next save replace the file, because an incomplete last line cannot be appended to.
        self._saved = len(whole) if len(whole) == len(data) else 0
        self._continue_clock(steps)
        return steps

    async def steps(self) -> tuple[tuple[TimedStep, ...], UnansweredStep | None]:
        """The stored steps, and the step that was sent after them. Used by the attempt that continues this one."""
        _, steps, in_flight = await self._read()
        return steps or (), in_flight

    async def _read(self) -> tuple[bytes, tuple[TimedStep, ...] | None, UnansweredStep | None]:
        data = await self._retry_until_answered(lambda: self._store.read(self._place(TRAJECTORY))) or b""
        steps = _decode(data[: data.rfind(b"\n") + 1])
        last = await self._retry_until_answered(lambda: self._store.read(self._place(IN_FLIGHT))) if steps else None
        return data, steps, _decode_in_flight(last, len(steps or ()))

    def _continue_clock(self, steps: Sequence[TimedStep]) -> None:
        if steps:
            self._began -= steps[-1].elapsed_seconds

    def describe(self, provenance: Provenance) -> None:
        """Write the header with ``provenance``, the values that are known before the first step."""
        self.provenance = provenance
        self._write_begin()

    def _write_begin(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        for line in unwritten:
            header = isinstance(line, TrajectoryHeader)
            self._line(msgspec.structs.replace(line, provenance=self.provenance) if header else line)

    def sending(self, seq: int, call: ToolCall, exchanges: Sequence[Any] = ()) -> None:
        """Record a step that is about to be sent, with the exchanges before it. ``write`` replaces this record."""
        if not self._lines:
            return
        self._in_flight = UnansweredStep(seq=seq, call=call, exchanges=tuple(exchanges))
        if self._store.checkpoint_steps == 1:
            self._saving_soon = asyncio.get_running_loop().call_later(_IN_FLIGHT_SECONDS, self._changed.set)

    def write(self, step: Step, exchanges: Sequence[Any] = ()) -> None:
        """Append one step, with the exchanges before it."""
        if self._saving_soon is not None:
            self._saving_soon.cancel()
        self._in_flight = None
        self._write_begin()
        self._line(
            TimedStep(
                seq=step.seq,
                call=step.call,
                observation=step.observation,
                elapsed_seconds=round(time.monotonic() - self._began, 6),
                exchanges=tuple(exchanges) or msgspec.UNSET,
            )
        )
        if not self._lines:
            return
        self._unsaved_steps += 1
        if self._unsaved_steps >= self._store.checkpoint_steps:
            self._changed.set()

    @contextlib.asynccontextmanager
    async def saving(self) -> AsyncIterator[None]:
        """Save in the background during the context, and once more at its end, also after a cancellation."""
        saving = asyncio.create_task(self.keep_saving(), name="dgym-saving")
        try:
            yield
        finally:
            saving.cancel()
            await asyncio.wait([saving])
            self._write_begin()
            with contextlib.suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(_LAST_SAVE_SECONDS):
                    await self.save()

    async def keep_saving(self) -> None:
        """Save the trajectory whenever it has enough new steps, until cancelled."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.save()
                pause = _FIRST_PAUSE_SECONDS
            except StoreUnavailable as error:
                _log.warning("the trajectory is kept in memory meanwhile: %s", error)
                await self._sleep(pause)
                pause = 2 * pause
                self._changed.set()

    async def save(self) -> None:
        """Write the new lines of the trajectory.

        A longer stored trajectory is kept, because a driver that has superseded this one wrote it. A cancelled save
        continues in the background, and the next save waits for it. Otherwise both could write the same lines.

        Raises:
            StoreUnavailable: The store does not answer or refuses the call.
        """
        saving = asyncio.create_task(self._save(), name="dgym-save")
        # asyncio logs exceptions that are never retrieved. The next save raises the same exception again.
        saving.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.wait([saving])
        saving.result()

    async def save_within(self, seconds: float) -> None:
        """Save, and retry for at most ``seconds`` if the store does not answer."""
        with contextlib.suppress(TimeoutError, StoreUnavailable):
            async with asyncio.timeout(seconds):
                await self._retry_until_answered(self.save)

    async def _save(self) -> None:
        async with self._saving:
            end, self._unsaved_steps, in_flight = len(self._lines), 0, self._in_flight
            await self._save_lines(end)
            if in_flight is not None and in_flight.seq != self._in_flight_saved:
                await self._store.write(self._place(IN_FLIGHT), msgspec.json.encode(in_flight, enc_hook=repr))
                self._in_flight_saved = in_flight.seq

    async def _save_lines(self, end: int) -> None:
        if end != self._saved:
            place = self._place(TRAJECTORY)
            fresh = bytes(self._lines[self._saved : end])
            appended = await self._store.append(place, fresh, size=self._saved)
            written = appended or await self._replace(place, bytes(self._lines[:end]))
            self._saved = end if written else 0

    async def _replace(self, place: str, data: bytes) -> bool:
        version = await self._store.replace(
            place, data, version=self._version, keep=lambda stored: _is_longer(stored, data)
        )
        if version is None:
            _log.info("a longer trajectory is already stored and is kept")
        self._version = version
        return version is not None

    async def finish(self, result: StoredResult) -> StoredResult:
        """Store all files, the result last.

        Returns:
            The stored result: ``result``, or the earlier result if one was already stored.

        Raises:
            Superseded: The attempt was given up.
        """
        return await self._retry_until_answered(lambda: self._finish(result))

    async def _retry_until_answered(self, work: Callable[[], Awaitable[T]]) -> T:
        """Retry ``work`` until the store answers. Failures and the recovery are reported to ``unavailable``."""
        pause = _FIRST_PAUSE_SECONDS
        failed = False
        while True:
            try:
                done = await work()
            except StoreUnavailable as error:
                if self._longest_pause_seconds is None:
                    raise
                failed = True
                self._unavailable(error)
                await self._sleep(pause)
                pause = 2 * pause
            else:
                if failed:
                    self._unavailable(None)
                return done

    async def _sleep(self, pause: float) -> None:
        longest = self._longest_pause_seconds or _LONGEST_PAUSE_SECONDS
        await asyncio.sleep(min(pause, longest) * random.uniform(0.5, 1.0))  # noqa: S311 - no secret

    async def _finish(self, result: StoredResult) -> StoredResult:
        if (earlier := await self._result()) is not None:
            return earlier
        patch = result.patch.encode("utf-8", "surrogateescape")
        stored = msgspec.structs.replace(
            result,
            attempt=self.attempt,
            result_uri=self.uri,
            patch=result.patch if len(patch) <= INLINE_PATCH_LIMIT else "",
            wall_seconds=round(time.monotonic() - self._began, 3) if self._timed else None,
        )
        self._write_begin()
        await self.save()
        await self._store.write(self._place(PATCH), patch)
        if self._log is not None:
            await self._store.write(self._place(LOG), self._log().encode("utf-8", "replace"))
        data = msgspec.json.format(msgspec.json.encode(stored), indent=2) + b"\n"
        if await self._store.create(self._place(RESULT), data):
            return stored
        if await self._store.read(self._place(RESULT)) == GIVEN_UP:
            raise Superseded(f"attempt {self.attempt} was given up: another agent pod did not find a result of it")
        return await self._result() or stored

    def _place(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _line(self, value: TrajectoryHeader | TimedStep) -> None:
        line = self._encoder.encode(value) + b"\n"
        if not self._lines and self._store.append_at_once(self._place(TRAJECTORY), line, size=self._written_at_once):
            self._written_at_once += len(line)
        else:
            self._lines += line


def _decode_in_flight(data: bytes | None, following: int) -> UnansweredStep | None:
    """The step in flight, or None if its number is not ``following``: then it is older than the trajectory."""
    try:
        step = msgspec.json.decode(data or b"", type=UnansweredStep)
    except DECODE_ERRORS:
        return None
    return step if step.seq == following else None


def _is_longer(stored: bytes, data: bytes) -> bool:
    """Whether ``stored`` is a trajectory with more steps than ``data``."""
    steps = _decode(stored[: stored.rfind(b"\n") + 1])
    return steps is not None and len(steps) > data.count(b"\n") - 1


def _decode(data: bytes) -> tuple[TimedStep, ...] | None:
    """The steps of a trajectory, or None if ``data`` is not a valid trajectory. Then a new one is begun."""
    found = parse_trajectory(io.BytesIO(data), TimedStep)
    return None if found.problem or [step.seq for step in found.steps] != list(range(len(found.steps))) else found.steps
