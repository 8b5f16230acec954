"""Tests of a sandbox of an ordinary user. If the tests run as root, they start it as the user nobody."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from ctypes.util import find_library
from pathlib import Path

import msgspec
import pytest

import dgym

NOBODY = 65534

SCRIPT = """
import asyncio, json, os, sys
from dgym.sandbox import SandboxSpec
from dgym.sandbox.local._provider import LocalProvider

async def main():
    sandbox = await LocalProvider(SandboxSpec(python=sys.executable), kind=sys.argv[1]).sandbox()
    await sandbox.write_file("main.py", b"print(6 * 7)")
    ran = await sandbox.run(["python", "main.py"])
    read = await sandbox.run("cat /etc/shadow; ls /root; touch /usr/x; mkdir closed; chmod 0 closed")
    directory = str(sandbox._prepared.directory.path)
    await sandbox.stop()
    print(json.dumps([os.getuid(), ran.text, read.exit_status, os.path.exists(directory)]))

asyncio.run(main())
"""


@pytest.fixture(scope="session")
def for_everybody():
    """A copy of an interpreter and of the packages that the sandbox needs, readable for every user."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    at_home = Path(sysconfig.get_config_var("LIBDIR") or "/").is_relative_to(Path.home())
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and at_home and find_library(version) is None:
        pytest.skip("this Python loads its own library from root's home, which other users may not read")
    root = Path(tempfile.mkdtemp(prefix="dgym-everybody-"))
    root.chmod(0o755)
    prefix = Path(sys.base_prefix)
    unwanted = shutil.ignore_patterns("test", "site-packages", "idlelib", "config-*", "ensurepip", "tkinter")
    (root / "base" / "bin").mkdir(parents=True)
    shutil.copy(prefix / "bin" / version, root / "base" / "bin" / version)
    (root / "base" / "bin" / "python").symlink_to(version)
    shutil.copytree(prefix / "lib" / version, root / "base" / "lib" / version, ignore=unwanted, symlinks=True)
    for module in (dgym, msgspec):
        package = Path(module.__file__).parent
        ignored = shutil.ignore_patterns("__pycache__", "benchmarks")
        shutil.copytree(package, root / "packages" / package.name, ignore=ignored)
    yield root
    shutil.rmtree(root)


def as_nobody(root, kind):
    home = root / f"home-{kind}"
    home.mkdir(exist_ok=True)
    os.chown(home, NOBODY, NOBODY)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(root / "packages")}
    return subprocess.run(
        [str(root / "base" / "bin" / "python"), "-B", "-c", SCRIPT, kind],
        env=environment,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.skipif(os.getuid() != 0, reason="this run is an ordinary user's already")
def test_an_ordinary_user_gets_a_sandbox(for_everybody, kind):
    probe = subprocess.run(
        [str(for_everybody / "base/bin/python"), "-c", "import ssl"], check=False, capture_output=True
    )
    if probe.returncode != 0:
        pytest.skip(f"the interpreter cannot be moved: {probe.stderr!r}")
    ended = as_nobody(for_everybody, kind)
    assert ended.returncode == 0, ended.stderr
    user, printed, _, left = json.loads(ended.stdout)
    assert (user, printed, left) == (NOBODY, "42\n", False)
    assert not Path("/usr/x").exists()
