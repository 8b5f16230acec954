"""Tests of pinned requirements: exact versions and hashes. A directory of wheels replaces the index."""

import asyncio
import hashlib
import shutil
import zipfile
from pathlib import Path

import pytest

from dgym.errors import SetupFailed
from dgym.sandbox.local import ensure_environment, pin_requirements
from tests.support.wheels import write_wheel


@pytest.fixture(params=["pip", "uv"])
def wheels(request, tmp_path, monkeypatch):
    if request.param == "pip":
        monkeypatch.setenv("PATH", str(tmp_path))
    elif shutil.which("uv") is None:
        pytest.skip("uv is not installed")
    settings = tmp_path / "uv.toml"
    settings.write_text(f'no-index = true\nfind-links = ["{tmp_path}"]\n')
    monkeypatch.setenv("UV_CONFIG_FILE", str(settings))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def add(name, version, *requires):
        digest = hashlib.sha256(write_wheel(tmp_path, name, version, requires=requires).read_bytes()).hexdigest()
        return f"{name}=={version} --hash=sha256:{digest}"

    return add


def test_requirements_in_conflict_or_without_a_wheel_are_left_out(wheels):
    one = wheels("one", "1.0")
    wheels("one", "2.0")
    two = wheels("two", "1.5", "one<2")
    pinned = asyncio.run(pin_requirements([["two"], ["absent>=1"], ["one>=2"]]))
    assert pinned.lines == (one, two)
    assert [line for line, _ in pinned.left_out] == ["absent>=1", "one>=2"]


def test_a_conflict_leaves_out_the_later_list_although_older_versions_have_no_wheel(wheels, tmp_path):
    one = wheels("one", "1.0")
    wheels("one", "2.0")
    two = wheels("two", "1.5", "one<2")
    (tmp_path / "two-1.0.tar.gz").write_bytes(b"")
    pinned = asyncio.run(pin_requirements([["two"], ["one>=2"]]))
    assert pinned.lines == (one, two)
    assert pinned.left_out == (("one>=2", "it contradicts the other requirements"),)


def test_unresolvable_requirements_raise_setup_failed(wheels):
    wheels("two", "1.5", "nowhere")
    with pytest.raises(SetupFailed, match="could not be resolved"):
        asyncio.run(pin_requirements([["two"]]))


def test_a_requirement_whose_dependency_has_no_wheel_is_left_out_alone(wheels):
    one = wheels("one", "1.0")
    wheels("old_mypy", "0.9", "typed-ast")
    pinned = asyncio.run(pin_requirements([["one"], ["old-mypy==0.9"]]))
    assert pinned.lines == (one,)
    assert [line for line, _ in pinned.left_out] == ["old-mypy==0.9"]


def test_a_platform_gets_the_hashes_of_its_own_wheels(wheels, tmp_path):
    wheels("one", "1.0")
    source = tmp_path / "one-1.0-py3-none-any.whl"
    platforms = ("manylinux_2_17_x86_64", "manylinux_2_17_aarch64", "macosx_11_0_arm64", "macosx_11_0_x86_64")
    digests = []
    for platform in (*platforms, "win_amd64"):
        with (
            zipfile.ZipFile(source) as wheel,
            zipfile.ZipFile(tmp_path / f"one-1.0-py3-none-{platform}.whl", "w") as to,
        ):
            for name in wheel.namelist():
                to.writestr(name, wheel.read(name).replace(b"py3-none-any", f"py3-none-{platform}".encode()))
        digests.append(hashlib.sha256((tmp_path / f"one-1.0-py3-none-{platform}.whl").read_bytes()).hexdigest())
    source.unlink()
    pinned = asyncio.run(pin_requirements([["one"]]))
    assert pinned.lines == (" ".join(["one==1.0", *sorted(f"--hash=sha256:{digest}" for digest in digests[:4])]),)


def test_a_file_with_another_hash_is_not_installed(wheels):
    wheels("pytest", "1.0", "one")
    other = f"pytest==1.0 --hash=sha256:{'0' * 64}"
    with pytest.raises(SetupFailed, match="the index has a file whose hash is not in the manifest"):
        asyncio.run(ensure_environment([other, wheels("one", "1.0")]))


def test_an_environment_of_hashed_lines_is_installed_once(wheels):
    pins = [wheels("pytest", "1.0", "one"), wheels("one", "1.0")]
    assert asyncio.run(ensure_environment(pins)) == asyncio.run(ensure_environment(pins))
    assert wheels("one", "1.0", "pytest") not in pins


def test_distributions_without_hashes_are_installed_separately(wheels):
    one = wheels("one", "1.0")
    wheels("one", "2.0")
    wheels("pytest", "1.0", "one")
    messages: list[str] = []
    environment = Path(asyncio.run(ensure_environment([one], progress=messages.append)))
    names = {path.name for path in environment.glob("lib/python*/site-packages/*.dist-info")}
    assert {"one-1.0.dist-info", "pytest-1.0.dist-info"} <= names
    assert "installing without hashes, because the manifest does not list them: pytest" in messages
    needing = wheels("two", "1.0", "one")
    with pytest.raises(SetupFailed, match="a required distribution is not listed there"):
        asyncio.run(ensure_environment([needing]))
