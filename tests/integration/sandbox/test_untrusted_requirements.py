"""Tests of attacks by a task's requirements: their code runs outside the sandbox only if the user allows it."""

import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from dgym.api import loads
from dgym.env import Opening
from dgym.errors import ManifestError, SetupFailed
from dgym.sandbox.local import ensure_environment, resolve_python
from dgym.sandbox.local._environments import installer_environment
from tests.support.wheels import wheel_files, write_wheel

pytestmark = [pytest.mark.attack("host-build"), pytest.mark.thorough]

BACKEND = """
import json, os, zipfile
open({canary!r}, "w").write(json.dumps(dict(os.environ)))

def build_wheel(directory, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(os.path.join(directory, "evil-1-py3-none-any.whl"), "w") as wheel:
        for name, text in {files!r}.items():
            wheel.writestr(name, text)
    return "evil-1-py3-none-any.whl"
"""


@pytest.fixture
def canary(tmp_path):
    return tmp_path / "canary"


@pytest.fixture
def sdist(tmp_path, canary):
    """A source distribution whose build writes its environment into the canary."""
    path = tmp_path / "index" / "evil-1.tar.gz"
    path.parent.mkdir()
    contents = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: evil\nVersion: 1\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.format(canary=str(canary), files=wheel_files("evil")),
    }
    with tarfile.open(path, "w:gz") as archive:
        for name, text in contents.items():
            member = tarfile.TarInfo(f"evil-1/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    write_wheel(path.parent, "pytest")
    return path


@pytest.fixture(params=["pip", "uv"])
def installer(request, tmp_path, sdist, monkeypatch):
    """An installer with a directory as its index, in the environment of a user with a token."""
    programs = tmp_path / "programs"
    programs.mkdir()
    if request.param == "uv":
        if (uv := shutil.which("uv")) is None:
            pytest.skip("uv is not installed")
        (programs / "uv").symlink_to(uv)
    monkeypatch.setenv("PATH", str(programs))
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(sdist.parent))
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DGYM_TEST_TOKEN", "a secret of the user")


@pytest.mark.usefixtures("installer")
async def test_a_source_distribution_is_not_built(canary):
    reported = []
    with pytest.raises(SetupFailed, match=r"no wheel of a requirement.*--build-requirements") as refused:
        await ensure_environment(["evil"], progress=reported.append)
    assert str(refused.value).startswith("requirements: ")
    assert reported[1] == "from wheels only; source distributions are not built"
    assert not canary.exists()


@pytest.mark.usefixtures("installer")
@pytest.mark.parametrize("form", ["evil @ file://{}", "evil@file://{}", "evil[x] @ file://{} ; python_version > '3'"])
async def test_a_url_is_refused_by_field_and_value(form, sdist, canary):
    requirement = form.format(sdist)
    with pytest.raises(ManifestError, match=r"^requirements\[1\]: .*--build-requirements") as refused:
        await ensure_environment(["pytest", requirement])
    assert repr(requirement) in str(refused.value)
    assert not canary.exists()


@pytest.mark.usefixtures("installer")
@pytest.mark.parametrize("build", [False, True])
@pytest.mark.parametrize("form", ["{relative}", "file://{path}", "git+file://{path}", "-e{path}", "x/../{relative}"])
async def test_paths_urls_and_options_are_refused_always(form, build, sdist, canary):
    """Installers accept a relative path of a directory or archive, even if it begins like a name."""
    requirement = form.format(path=sdist, relative=str(sdist).lstrip("/"))
    with pytest.raises(ManifestError, match=r"^requirements\[0\]: .* is not a requirement"):
        await ensure_environment([requirement], build_requirements=build)
    assert not canary.exists()


@pytest.mark.usefixtures("installer")
@pytest.mark.parametrize("form", ["evil", "evil @ file://{}"])
async def test_when_asked_for_it_is_built_without_the_users_variables(form, sdist, canary):
    reported = []
    requirement = form.format(sdist)
    path = await ensure_environment([requirement], build_requirements=True, progress=reported.append)
    assert list(Path(path).glob("lib/python*/site-packages/evil.py"))
    seen = json.loads(canary.read_text())
    assert "DGYM_TEST_TOKEN" not in seen
    assert seen["HOME"] != str(Path.home())
    assert "their code runs here" in reported[1]
    assert await ensure_environment([requirement]) == path, "what was built once is used again"


@pytest.mark.usefixtures("installer")
async def test_a_task_is_built_where_its_environment_is_asked_to(canary):
    (task,) = loads(
        """
        apiVersion: dgym.dev/v1alpha1
        kind: DebugTask
        metadata: {name: hostile}
        spec:
          instructions: x
          entrypoint: pytest
          requirements: [evil]
          source: {files: [{path: a.py, content: ""}]}
        """
    )
    with pytest.raises(SetupFailed):
        await Opening().sandbox_spec(task)
    assert not canary.exists()
    await Opening(build_requirements=True).sandbox_spec(task)
    assert canary.exists()


@pytest.mark.usefixtures("installer")
async def test_an_installed_package_does_not_run_outside_the_sandbox(sdist, canary):
    """A line of a .pth file that begins with ``import`` is executed by each start of the interpreter."""
    started = f"import os; open({str(canary)!r}, 'w').close()\n"
    write_wheel(sdist.parent, "starts", files={"starts.py": "", "starts.pth": started})
    path = await ensure_environment(["starts"])
    assert list(Path(path).glob("lib/python*/site-packages/starts.pth"))
    assert resolve_python(path) == f"{path}/bin/python"
    assert not canary.exists()


def test_an_installer_keeps_the_index_and_nothing_else(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ.clear()
    kept = {
        "PIP_INDEX_URL": "https://user:password@index.example/simple",
        "UV_DEFAULT_INDEX": "https://index.example/simple",
        "UV_INDEX_TEAM_PASSWORD": "password",
        "HTTPS_PROXY": "http://proxy.example:3128",
        "SSL_CERT_FILE": "/etc/certificates.pem",
        "PATH": "/usr/bin",
    }
    home = tmp_path / "home"
    (home / ".pip").mkdir(parents=True)
    (home / ".pip" / "pip.conf").touch()
    os.environ.update({**kept, "OPENAI_API_KEY": "x", "PYTHONPATH": "x", "PIP_TARGET": "x", "HOME": str(home)})
    environment = installer_environment("/scratch")
    assert kept.items() <= environment.items()
    assert not {"OPENAI_API_KEY", "PYTHONPATH", "PIP_TARGET"} & set(environment)
    assert environment["HOME"] == environment["TMPDIR"] == "/scratch"
    assert environment["XDG_CONFIG_HOME"] == str(home / ".config")
    assert environment["PIP_CONFIG_FILE"] == str(home / ".pip" / "pip.conf")
