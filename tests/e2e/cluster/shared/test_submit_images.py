"""Tests of a repository that is submitted with a registry: its image is built, pushed, and runs as on a laptop."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from hack.cluster.machine import HOST
from tests.e2e.cluster.episodes import SUBMIT, replay
from tests.e2e.cluster.support import Failed, run, unique
from tests.support.required import absent

BASE = os.environ.get("DGYM_E2E_SANDBOX_IMAGE", "")
BUILD_SECONDS = 900
PROJECT = {
    "pyproject.toml": """\
[build-system]
requires = ["setuptools>=64"]
build-backend = "setuptools.build_meta"

[project]
name = "tallies"
version = "4.2"
dependencies = ["iniconfig"]

[project.scripts]
tallies = "tallies:main"

[tool.setuptools.packages.find]
where = ["src"]
""",
    "setup.py": """\
from setuptools import Extension, setup

setup(ext_modules=[Extension("tallies._fast", ["src/tallies/_fast.c"])])
""",
    "src/tallies/__init__.py": """\
from importlib.metadata import version

import iniconfig  # noqa: F401

from tallies._fast import twice

__version__ = version("tallies")


def total(numbers):
    return sum(numbers) - 1


def main():
    print("tallies", __version__)
""",
    "src/tallies/_fast.c": """\
#include <Python.h>

static PyObject *twice(PyObject *self, PyObject *number) { return PyNumber_Add(number, number); }
static PyMethodDef methods[] = {{"twice", twice, METH_O, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_fast", "", -1, methods};
PyMODINIT_FUNC PyInit__fast(void) { return PyModule_Create(&module); }
""",
    "tests/test_tallies.py": """\
import subprocess

import tallies


def test_total():
    assert tallies.total([1, 2]) == 3


def test_extension():
    assert tallies.twice(4) == 8


def test_script():
    assert subprocess.check_output(["tallies"], text=True) == "tallies 4.2\\n"
""",
}
EVAL = {"tool": "eval", "arguments": {}}
REPAIR = {"tool": "bash", "arguments": {"command": "sed -i 's/sum(numbers) - 1/sum(numbers)/' src/tallies/__init__.py"}}


def base_python():
    """Major and minor version of Python in the base image."""
    question = "import sys; print('%d.%d' % sys.version_info[:2])"
    return run("podman", "run", "--rm", "--network", "none", BASE, "python3", "-c", question).strip()


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A registry on this machine that the node reaches. The node's containerd pulls from it without TLS."""
    program, state = shutil.which("docker-registry"), Path(os.environ.get("KUBECONFIG", "")).parent
    if program is None or not (state / "containerd.toml").is_file():
        absent("registry", "needs Debian's docker-registry and the cluster of hack/cluster, which takes its images")
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        address = f"{HOST}:{probe.getsockname()[1]}"
    (state / "registries" / address).mkdir(parents=True)
    hosts = f'[host."http://{address}"]\ncapabilities = ["pull", "resolve"]\n'
    (state / "registries" / address / "hosts.toml").write_text(hosts)
    configuration = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "images")}},
        "http": {"addr": address},
    }
    (tmp_path / "registry.yaml").write_text(yaml.safe_dump(configuration))
    (tmp_path / "registries.conf").write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(tmp_path / "registries.conf"))
    with subprocess.Popen(
        [program, "serve", tmp_path / "registry.yaml"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            _answers(address)
            yield f"{address}/team"
        finally:
            server.terminate()
            server.wait(30)


def _answers(address):
    host, _, port = address.partition(":")
    end = time.monotonic() + 60
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except OSError:
            if time.monotonic() > end:
                raise Failed(f"no registry at {address}") from None
            time.sleep(0.2)
        else:
            return


@pytest.fixture
def manifest(tmp_path):
    """The repository and an Episode with it. The agent runs the tests, repairs the bug and submits."""
    root = tmp_path / "tallies"
    for path, text in PROJECT.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    task = {
        "source": {"localPath": "./tallies"},
        "environment": {"python": base_python(), "systemPackages": ["gcc", "libc6-dev", "python3-dev"]},
        "entrypoint": "python -m pytest -q -rA",
    }
    document = {
        "apiVersion": "dgym.dev/v1alpha1",
        "kind": "Episode",
        "metadata": {"name": unique("tallies")},
        "spec": {"task": task, "agent": replay(EVAL, REPAIR, EVAL, SUBMIT)},
    }
    path = tmp_path / "episode.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def outcome(directory):
    """The episode's reason, score and maximal score, and the test ids that each eval listed."""
    (result,) = Path(directory).rglob("result.json")
    steps = [json.loads(line) for line in (result.parent / "trajectory.jsonl").read_text().splitlines()[1:]]
    texts = [step["observation"]["text"] for step in steps if step.get("observation", {}).get("tool") == "eval"]
    ids = [sorted(re.findall(r"^(PASSED|FAILED) (\S+)", text, re.MULTILINE)) for text in texts]
    found = json.loads(result.read_text())
    return found["reason"], found["score"], found["maxScore"], ids


def test_the_laptop_and_the_cluster_agree(registry, manifest, namespace, tmp_path):
    dgym = str(Path(sys.executable).with_name("dgym"))
    run(dgym, "run", str(manifest), "--results", str(tmp_path / "laptop"), timeout=BUILD_SECONDS)
    flags = ("--registry", registry, "--base", BASE, "--builder", "podman", "-n", namespace.namespace)
    submitted = run(dgym, "submit", str(manifest), *flags, "--wait", check=False, timeout=BUILD_SECONDS)
    name = yaml.safe_load(manifest.read_text())["metadata"]["name"]
    status = namespace.status(name)
    assert status.get("reason") == "Resolved", submitted
    system = ("--system-namespace", os.environ["DGYM_E2E_SYSTEM_NAMESPACE"])
    run(dgym, "results", name, "--directory", str(tmp_path / "cluster"), "-n", namespace.namespace, *system)
    laptop, cluster = outcome(tmp_path / "laptop"), outcome(tmp_path / "cluster")
    assert laptop == cluster
    assert laptop[:3] == ("Resolved", 3, 3)
    assert [len(ids) for ids in laptop[3]] == [3, 3]
    # An unchanged image is not built again.
    again = run(dgym, "image", "build", str(manifest), "--push", registry, "--base", BASE, "--builder", "podman")
    image = namespace.get("episode", name)["spec"]["task"]["image"]
    assert again == f"{name} {image} (was there already)\n"
