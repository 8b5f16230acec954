"""Fixtures for the tests of the API layer: objects, a clock and a store."""

from collections.abc import Callable
from random import Random

import msgspec
import pytest

from dgym.kube import InformerStore
from tests.fakes.kube_clocks import ManualClock


class Meta(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    metadata: Meta
    owner: str = ""


@pytest.fixture(scope="session")
def thing() -> Callable[..., Thing]:
    def make(name: str, version: int | str, *, uid: str = "", namespace: str = "ns", owner: str = "") -> Thing:
        meta = Meta(name=name, namespace=namespace, uid=uid or f"uid-{name}", resource_version=str(version))
        return Thing(metadata=meta, owner=owner)

    return make


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def random() -> Random:
    return Random(7)


@pytest.fixture
def store(clock: ManualClock) -> InformerStore[Thing]:
    return InformerStore(clock)
