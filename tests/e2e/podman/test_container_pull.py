"""Tests of pulling missing images with progress, from a registry on this machine."""

import hashlib
import http.server
import json
import os
import threading
from pathlib import Path

import pytest

from dgym.errors import SandboxStartFailed
from dgym.sandbox.container import DEFAULT_IMAGE, ensure_image


class Registry(http.server.BaseHTTPRequestHandler):
    """Read side of the registry protocol. Serves one image from a directory that ``podman push … dir:`` wrote."""

    protocol_version = "HTTP/1.1"
    directory: Path

    def do_GET(self):
        parts = self.path.strip("/").split("/")
        kind = "application/json"
        if parts == ["v2"]:
            body = b"{}"
        elif parts[-2] == "manifests" and parts[-1] != "absent":
            body = (self.directory / "manifest.json").read_bytes()
            kind = json.loads(body)["mediaType"]
        elif parts[-2] == "blobs":
            body, kind = (self.directory / parts[-1].removeprefix("sha256:")).read_bytes(), "application/octet-stream"
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(body).hexdigest()}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def directory(engine, podman, build, tmp_path_factory):
    if engine.flavor != "podman":
        pytest.skip("docker pulls through its daemon, whose trusted registries are not ours to set")
    directory = tmp_path_factory.mktemp("registry") / "image"
    image = build("pulled", "COPY Dockerfile /\nUSER 4321\n", base="scratch")
    podman("push", "--quiet", "--format", "v2s2", image, f"dir:{directory}")
    return directory


@pytest.fixture
def registry(directory, tmp_path, monkeypatch):
    """The address of a registry that serves one image."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Served", (Registry,), {"directory": directory}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_port}"
    trusted = tmp_path / "registries.conf"
    trusted.write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(trusted))
    yield address
    server.shutdown()
    server.server_close()


async def test_a_missing_image_is_pulled_with_progress(engine, registry, podman):
    name, reported = f"{registry}/some/image:{os.getpid()}", []
    try:
        image = await ensure_image(engine, name, reported.append)
        assert reported[0] == f"pulling {name} with {engine.flavor}"
        assert reported[-1] == f"pulled {name}"
        assert len(reported) > 3
        assert image.user == "4321"
        reported.clear()
        assert await ensure_image(engine, name, reported.append) == image
        assert reported == []
    finally:
        podman("rmi", "--force", name)


async def test_an_image_that_does_not_exist_is_named(engine, registry):
    with pytest.raises(SandboxStartFailed, match=r"(?s)image '.*/some/image:absent' cannot be pulled: .*absent"):
        await ensure_image(engine, f"{registry}/some/image:absent")


async def test_an_image_of_this_machine_is_never_pulled(engine):
    with pytest.raises(SandboxStartFailed, match="an image of that name is never pulled; build it first"):
        await ensure_image(engine, "localhost/nobody/has:this")


async def test_a_missing_default_image_is_reported_with_the_build_command(engine, monkeypatch):
    monkeypatch.setattr("dgym.sandbox.container._engine.DEFAULT_IMAGE", f"{DEFAULT_IMAGE}-absent")
    with pytest.raises(SandboxStartFailed, match="build it with 'make images'"):
        await ensure_image(engine, f"{DEFAULT_IMAGE}-absent")
