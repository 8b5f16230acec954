"""Exact versions from a directory of wheels, as from an index."""

import asyncio
import shutil
import zipfile

import pytest

from dgym.errors import SetupFailed
from dgym.sandbox.local import pin_requirements


@pytest.fixture(params=["pip", "uv"])
def wheels(request, tmp_path, monkeypatch):
    if request.param == "pip":
        monkeypatch.setenv("PATH", str(tmp_path))
    elif shutil.which("uv") is None:
        pytest.skip("there is no uv on PATH")
    settings = tmp_path / "uv.toml"
    settings.write_text(f'no-index = true\nfind-links = ["{tmp_path}"]\n')
    monkeypatch.setenv("UV_CONFIG_FILE", str(settings))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))

    def add(name, version, *requires):
        with zipfile.ZipFile(tmp_path / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            info = f"{name}-{version}.dist-info"
            lines = "".join(f"Requires-Dist: {one}\n" for one in requires)
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}")
            wheel.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{info}/RECORD", "")

    return add


def test_requirements_get_versions_and_what_contradicts_or_has_no_wheel_is_left_out(wheels):
    wheels("one", "1.0")
    wheels("one", "2.0")
    wheels("two", "1.5", "one<2")
    pinned = asyncio.run(pin_requirements([["two"], ["absent>=1"], ["one>=2"]]))
    assert pinned.lines == ("one==1.0", "two==1.5")
    assert [line for line, _ in pinned.left_out] == ["absent>=1", "one>=2"]


def test_a_conflict_leaves_out_the_later_list_although_older_versions_have_no_wheel(wheels, tmp_path):
    wheels("one", "1.0")
    wheels("one", "2.0")
    wheels("two", "1.5", "one<2")
    (tmp_path / "two-1.0.tar.gz").write_bytes(b"")
    pinned = asyncio.run(pin_requirements([["two"], ["one>=2"]]))
    assert pinned.lines == ("one==1.0", "two==1.5")
    assert pinned.left_out == (("one>=2", "it contradicts the other requirements"),)


def test_what_cannot_be_resolved_at_all_is_an_error(wheels):
    wheels("two", "1.5", "nowhere")
    with pytest.raises(SetupFailed, match="could not be resolved"):
        asyncio.run(pin_requirements([["two"]]))


def test_requirements_that_need_what_has_no_wheel_do_not_stop_the_others(wheels):
    wheels("one", "1.0")
    wheels("old_mypy", "0.9", "typed-ast")
    pinned = asyncio.run(pin_requirements([["one"], ["old-mypy==0.9"]]))
    assert pinned.lines == ("one==1.0",)
    assert [line for line, _ in pinned.left_out] == ["old-mypy==0.9"]
