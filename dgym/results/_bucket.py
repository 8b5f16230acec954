"""Results in an S3-compatible bucket. Only this module imports obstore."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError
from obstore.store import S3Store as Bucket

from dgym.results._store import LISTED, Content, StoredItem, StoreUnavailable, checked_path

T = TypeVar("T")

_CALL_SECONDS = 120.0
_CONFLICTS = 5
_PROBE = ".dgym-probe"
_NO_BUCKET = "NoSuchBucket"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_RETRY: Any = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=2), "base": 2},
}
"""Few retries, because ``Record`` retries too, and reports in the meantime that the store does not answer."""


class BucketStore:
    """A :class:`~dgym.results._store.ResultsStore` in a bucket.

    Objects cannot be appended to, so the whole trajectory is written after every ten steps.
    """

    checkpoint_steps = 10

    def __init__(self, bucket: Any, location: str) -> None:
        self._bucket = bucket
        self._location = location.rstrip("/")

    def uri(self, path: str) -> str:
        """An ``s3:`` URI."""
        return f"{self._location}/{path}"

    async def check(self) -> None:
        """List a prefix without objects, which fails if the bucket is missing or the credentials are wrong."""
        await self._do(self._list(_PROBE))

    async def read(self, path: str) -> bytes | None:
        """The object, or None if it does not exist."""
        try:
            return await self._do(self._read(checked_path(path)))
        except FileNotFoundError:
            return None

    async def open(self, path: str) -> Content | None:
        """The object in chunks, or None if it does not exist."""
        try:
            found = await self._do(obstore.get_async(self._bucket, checked_path(path)))
        except FileNotFoundError:
            return None
        return Content(found.meta["size"], _chunks(found))

    async def write(self, path: str, data: bytes) -> None:
        """Put the object."""
        await self._put(obstore.put_async(self._bucket, checked_path(path), data, use_multipart=False))

    async def create(self, path: str, data: bytes) -> bool:
        """Put the object on the condition that it does not exist."""
        try:
            await self._do(
                obstore.put_async(self._bucket, checked_path(path), data, mode="create", use_multipart=False)
            )
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    async def replace(
        self, path: str, data: bytes, *, version: str | None, keep: Callable[[bytes], bool]
    ) -> str | None:
        """Put the object on the condition that its ETag is ``version``, or ``keep`` returns False for its bytes."""
        path = checked_path(path)
        for _ in range(_CONFLICTS):
            mode: Any = "create" if version is None else {"e_tag": version}
            try:
                put = obstore.put_async(self._bucket, path, data, mode=mode, use_multipart=False)
                return str((await self._do(put))["e_tag"])
            except (AlreadyExistsError, PreconditionError):
                version, present = await self._do(self._present(path))
                if version is not None and keep(present):
                    return None
            except FileNotFoundError:
                version = None
        raise StoreUnavailable(f"the results store {self._location}: {path} changes under every write")

    async def append(self, path: str, data: bytes, *, size: int) -> bool:  # noqa: ARG002 - objects do not grow
        """Returns False, because objects cannot be appended to."""
        return False

    def append_at_once(self, path: str, data: bytes, *, size: int) -> bool:  # noqa: ARG002 - as above
        """Returns False, because a bucket is not a local disk."""
        return False

    async def files(self, prefix: str, *, most: int = LISTED) -> list[StoredItem]:
        """The objects below ``prefix``."""
        return await self._do(self._list(checked_path(prefix) if prefix else "", most))

    async def _read(self, path: str) -> bytes:
        return bytes(await (await obstore.get_async(self._bucket, path)).bytes_async())

    async def _present(self, path: str) -> tuple[str | None, bytes]:
        try:
            found = await obstore.get_async(self._bucket, path)
        except (NotFoundError, FileNotFoundError) as error:
            if _NO_BUCKET in str(error):
                raise
            return None, b""
        return found.meta["e_tag"], bytes(await found.bytes_async())

    async def _list(self, prefix: str, most: int = LISTED) -> list[StoredItem]:
        found: list[StoredItem] = []
        async for page in obstore.list(self._bucket, prefix=f"{prefix}/" if prefix else None):
            found += [StoredItem(item["path"], item["size"], item["last_modified"].timestamp()) for item in page]
            if len(found) >= most:
                break
        return sorted(found[:most], key=lambda item: item.path)

    async def _put(self, work: Awaitable[object]) -> None:
        try:
            await self._do(work)
        except FileNotFoundError as error:
            raise StoreUnavailable(str(error)) from error

    async def _do(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                return await work
        except (NotFoundError, FileNotFoundError) as error:
            if _NO_BUCKET in str(error):
                raise StoreUnavailable(f"the results store {self._location}: the bucket does not exist") from error
            raise FileNotFoundError(f"the results store {self._location}: {str(error).splitlines()[0]}") from None
        except (AlreadyExistsError, PreconditionError):
            raise
        except (BaseError, OSError, ValueError) as error:
            # The first line is the reason. The others repeat the whole request.
            text = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise StoreUnavailable(f"the results store {self._location}: {text}") from error


def open_bucket(bucket: str, prefix: str) -> BucketStore:
    """The bucket, with endpoint, region and credentials from the ``AWS_*`` environment variables."""
    endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), "")
    opened = Bucket(
        bucket,
        prefix=prefix or None,
        # Client options replace those of the environment, so an endpoint without TLS must be allowed here.
        client_options={"timeout": "60s", "connect_timeout": "10s", "allow_http": endpoint.startswith("http:")},
        retry_config=_RETRY,
    )
    return BucketStore(opened, f"s3://{bucket}/{prefix}")


async def _chunks(found: Any) -> AsyncIterator[bytes]:
    async for chunk in found.stream():
        yield bytes(chunk)
