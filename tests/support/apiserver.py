"""A real etcd and kube-apiserver for tests, on loopback, without controllers, kubelet or scheduler.

Objects are validated, defaulted, admitted, stored and watched as in every cluster. No controller handles them: pods
stay Pending, children of deleted owners remain, deleted namespaces stay Terminating, aggregated ClusterRoles such as
`view` are empty. Pods do not need a service account.

A separate supervisor process runs both servers. Every user of the server holds a shared lock. The supervisor waits for
an exclusive lock, which the kernel grants when the last user has ended in any way. The servers die with the supervisor.
"""

import argparse
import ctypes
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from hack.cluster.build import find_binary  # noqa: E402
from hack.cluster.controlplane import (  # noqa: E402
    ApiServerFiles,
    Client,
    api_server_command,
    etcd_command,
    kubeconfig,
)

START_SECONDS = 60.0
STOP_SECONDS = 20.0
PR_SET_PDEATHSIG = 1


class ApiServerUnavailableError(Exception):
    """The binaries are missing on this machine."""


@dataclass(frozen=True)
class ApiServer:
    """A running API server, and this process's share of the lock that keeps it running."""

    directory: Path
    url: str
    token: str
    _share: IO[bytes]

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig file of a cluster administrator."""
        return self.directory / "kubeconfig"

    @property
    def ca_file(self) -> Path:
        """Certificate of the authority that signed the server's certificate."""
        return self.directory / "pki" / "ca.crt"

    @property
    def audit_log(self) -> Path:
        """Log of all writes and of service accounts' reads since the start, a JSON object per line, level Metadata."""
        return self.directory / "audit.log"

    def request(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> Any:
        """Make a blocking request as administrator. Raises urllib.error.HTTPError if the server returns an error."""
        return Client(self.url, self.ca_file, self.token).request(method, path, body, content_type=content_type)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator. The exit code is not checked."""
        binary = find_binary("kubectl")
        if binary is None:
            raise ApiServerUnavailableError("there is no kubectl")
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self.directory)}
        command = [str(binary), *arguments]
        return subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True, timeout=90)

    def writes(self) -> list[dict[str, Any]]:
        """The writes in the audit log so far. A request is logged some time after its response."""
        return [entry for line in self.audited() if is_write(entry := json.loads(line))]

    def audited(self) -> list[str]:
        """The lines of the audit log so far."""
        text = self.audit_log.read_text()
        # The last line may be incomplete.
        return text[: text.rfind("\n") + 1].splitlines()

    def release(self) -> None:
        """Release this process's share. The server ends when the last share is released."""
        self._share.close()

    def stop(self) -> None:
        """Release the share and wait until the server has ended. Only for servers that are not shared."""
        self.release()
        with (self.directory / "running.lock").open("rb") as running:
            _wait(lambda: _try_lock(running, fcntl.LOCK_EX), STOP_SECONDS, "the API server did not end")


def is_write(entry: dict[str, Any]) -> bool:
    """True if the entry of the audit log is a write."""
    return entry["verb"] not in ("get", "list", "watch")


def missing_binaries() -> list[str]:
    """Names of the API server's binaries that are missing on this machine."""
    return [name for name in ("etcd", "kube-apiserver") if find_binary(name) is None]


def start_api_server(directory: Path) -> ApiServer:
    """Start a server with its files in ``directory``. Returns when it is ready."""
    if missing := missing_binaries():
        raise ApiServerUnavailableError(
            f"no {' and '.join(missing)} in KUBEBUILDER_ASSETS, the user's cache or PATH (`hack/cluster/cluster build`)"
        )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    share = (directory / "users.lock").open("wb")
    fcntl.flock(share, fcntl.LOCK_SH)
    log = directory / "supervisor.log"
    command = [sys.executable, __file__, str(directory)]
    with log.open("wb") as output:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=120, check=False)
    if done.returncode:
        share.close()
        raise RuntimeError(f"the API server did not start:\n{_tails(directory)}")
    return _opened(directory, share)


def shared_api_server(directory: Path) -> ApiServer:
    """The server that all processes with this directory share. The first process starts it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (directory / "start.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        generations = sorted(directory.glob("server-*"), key=lambda path: int(path.name.removeprefix("server-")))
        if generations and (server := _joined(generations[-1])):
            return server
        return start_api_server(directory / f"server-{len(generations)}")


def _joined(directory: Path) -> ApiServer | None:
    if not (directory / "server.json").exists():
        return None
    share = (directory / "users.lock").open("rb")
    with (directory / "running.lock").open("rb") as running:
        # A supervisor that holds the users' lock is stopping. A supervisor without its running lock has ended.
        if _try_lock(share, fcntl.LOCK_SH) and not _try_lock(running, fcntl.LOCK_EX):
            return _opened(directory, share)
    share.close()
    return None


def _opened(directory: Path, share: IO[bytes]) -> ApiServer:
    facts = json.loads((directory / "server.json").read_text())
    return ApiServer(directory, facts["url"], facts["token"], share)


def _try_lock(file: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(condition: Callable[[], bool], seconds: float, message: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(message)
        time.sleep(0.02)


def _tails(directory: Path) -> str:
    logs = [path for path in sorted(directory.glob("*.log")) if path.name != "audit.log"]
    return "\n".join(
        f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]) for log in logs
    )


# The code below runs in the supervisor.


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=_die_with_parent
        )


def _launch(directory: Path) -> list[subprocess.Popen[bytes]]:
    """Start both servers and wait until requests are served."""
    etcd, api_server = find_binary("etcd"), find_binary("kube-apiserver")
    if etcd is None or api_server is None:
        raise ApiServerUnavailableError("binaries disappeared")
    etcd_port, port = _free_ports(2)
    files = ApiServerFiles(directory)
    token = secrets.token_hex(16)
    files.write(token, ["127.0.0.1"])
    # Without controllers, the `default` service account that the admission plugin requires does not exist.
    command = api_server_command(
        api_server, files, etcd_port=etcd_port, address="127.0.0.1", port=port, services="10.99.0.0/24",
        extra=["--disable-admission-plugins=ServiceAccount"],
    )  # fmt: skip
    children = [
        _spawn(etcd_command(etcd, directory / "etcd", etcd_port), directory / "etcd.log"),
        _spawn(command, directory / "kube-apiserver.log"),
    ]
    url = f"https://127.0.0.1:{port}"
    try:
        _wait(lambda: _ready(url, directory, token, children), START_SECONDS, "not ready in time")
    except BaseException:
        _end(children)
        raise
    (directory / "kubeconfig").write_text(kubeconfig(url, directory / "pki" / "ca.crt", {"token": token}))
    (directory / "server.json").write_text(json.dumps({"url": url, "token": token}))
    return children


def _ready(url: str, directory: Path, token: str, children: list[subprocess.Popen[bytes]]) -> bool:
    if any(child.poll() is not None for child in children):
        raise ChildProcessError("a server ended")
    return Client(url, directory / "pki" / "ca.crt", token).ready()


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    for child in reversed(children):
        child.kill()
        child.wait(STOP_SECONDS)


def _supervise(directory: Path) -> None:
    """Start the servers, return in the calling process, and stop the servers after the last user has ended."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        # The supervisor writes "ready" when the servers are ready. The pipe ends without it if the supervisor failed.
        raise SystemExit(0 if os.read(reading, 5) == b"ready" else 1)
    os.close(reading)
    os.setsid()
    running = (directory / "running.lock").open("wb")
    fcntl.flock(running, fcntl.LOCK_EX)
    try:
        children = _launch(directory)
    except (ChildProcessError, TimeoutError) as failure:
        # Another process may have taken a port between its choice and its use.
        print(f"once more after: {failure}", file=sys.stderr, flush=True)
        shutil.rmtree(directory / "etcd", ignore_errors=True)
        children = _launch(directory)
    try:
        os.write(writing, b"ready")
        os.close(writing)
        with (directory / "users.lock").open("rb") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
            _end(children)
    finally:
        shutil.rmtree(directory / "etcd", ignore_errors=True)
    running.close()


def main() -> None:
    """Run the supervisor of the server in a directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    _supervise(parser.parse_args().directory.absolute())


if __name__ == "__main__":
    main()
