"""Repositories on git servers.

Git runs in a directory of ours with an environment of ours: no configuration of the machine or its user, no hooks, no
prompts, no filters, network protocols only. What it fetched is packed by us; an ``export-ignore`` in the tree has no
say. Submodules are not fetched.
"""

import contextlib
import os
import re
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from dgym.api import GitSource
from dgym.errors import SourceFailed
from dgym.workspace.sources.archive import shown_url
from dgym.workspace.sources.fetch import ANY_HOST, Cancellation, SourceHosts
from dgym.workspace.sources.tree import SIZE_LIMIT

TIMEOUT_SECONDS = 900
"""For one command of git; a server that sends next to nothing for a minute is abandoned earlier."""

SCRATCH_LIMIT = 3 * SIZE_LIMIT
"""What git may have on disk for one revision: packs, what it makes of them, and the tree."""

_MEASURE_SECONDS = 1.0
_PROTOCOLS = ("http", "https", "ssh", "git")
_PASSED_ON = (
    *("PATH", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO"),
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
)
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.autocrlf=false",
    "core.symlinks=true",
    "credential.helper=",
    "gc.auto=0",
    "advice.detachedHead=false",
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ABBREVIATED = re.compile(r"[0-9a-f]{7,39}")


class _Answer(NamedTuple):
    status: int
    output: str
    complaint: str


class GitFetch:
    """Fetches one revision into ``directory``, which must be empty."""

    def __init__(
        self, source: GitSource, directory: Path, cancellation: Cancellation, hosts: SourceHosts = ANY_HOST
    ) -> None:
        self._source = source
        self._directory = directory
        self._cancellation = cancellation
        self._where = f"source.git: {shown_url(source.url)}"
        if urlsplit(source.url).scheme not in _PROTOCOLS:
            raise SourceFailed(f"{self._where}: only {', '.join(_PROTOCOLS)} addresses are fetched")
        if source.revision.startswith("-"):
            raise SourceFailed(f"{self._where}: {source.revision!r} is no revision")
        self._settings = _SETTINGS if hosts.unbounded else (*_SETTINGS, *_bounds(source.url, hosts, self._where))

    def resolve(self) -> str | None:
        """The revision's commit by the server's list of branches and tags; None where only a fetch can find it."""
        revision = self._source.revision
        if _COMMIT.fullmatch(revision):
            return revision
        answer = self._git("ls-remote", "--", self._source.url)
        if answer.status:
            self._fail("the server does not answer", answer)
        rows = (line.split("\t", 1) for line in answer.output.splitlines() if "\t" in line)
        refs = {name: commit for commit, name in rows}
        for name in (f"refs/tags/{revision}^{{}}", f"refs/tags/{revision}", f"refs/heads/{revision}", revision):
            if name in refs:
                return refs[name]
        if not _ABBREVIATED.fullmatch(revision):
            raise SourceFailed(f"{self._where}: there is no branch, tag or commit {revision!r}")
        return None

    def checkout(self, commit: str | None) -> str:
        """Make the directory the tree of ``commit`` (None: of an abbreviated revision); gives the commit."""
        self._must("init", "--quiet", "--template=", ".")
        if commit is None or self._git("fetch", "--quiet", "--depth=1", "--", self._source.url, commit).status:
            # Some servers serve branches and tags only, and those of plain files cannot cut a history off.
            everything = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
            self._must("fetch", "--quiet", "--", self._source.url, *everything)
        wanted = f"{commit or self._source.revision}^{{commit}}"
        found = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", wanted)
        if found.status:
            raise SourceFailed(f"{self._where}: there is no commit {self._source.revision!r}")
        resolved = found.output.strip()
        self._must("checkout", "--quiet", "--force", "--detach", resolved)
        return resolved

    def _must(self, *arguments: str) -> None:
        answer = self._git(*arguments)
        if answer.status:
            self._fail(f"git {arguments[0]} failed", answer)

    def _fail(self, what: str, answer: _Answer) -> None:
        last = answer.complaint.strip().replace(self._source.url, shown_url(self._source.url)).splitlines()[-3:]
        raise SourceFailed(f"{self._where}: {what}: {' / '.join(last) or f'exit status {answer.status}'}")

    def _git(self, *arguments: str) -> _Answer:
        settings = [word for setting in self._settings for word in ("-c", setting)]
        try:
            process = subprocess.Popen(
                ["git", *settings, *arguments],
                cwd=self._directory,
                env=_environment(self._directory),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise SourceFailed(f"{self._where}: git is not installed on this machine") from None
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (SIZE_LIMIT, SIZE_LIMIT))
        try:
            output, complaint = self._wait(process)
        finally:
            _end(process)
        return _Answer(process.returncode, output.decode("utf-8", "replace"), complaint.decode("utf-8", "replace"))

    def _wait(self, process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
        begun = time.monotonic()
        deadline, measure_at = begun + TIMEOUT_SECONDS, begun + _MEASURE_SECONDS
        while True:
            try:
                return process.communicate(timeout=0.2)
            except subprocess.TimeoutExpired:
                self._cancellation.check()
                if time.monotonic() > deadline:
                    raise SourceFailed(f"{self._where}: git took longer than {TIMEOUT_SECONDS} s") from None
                if time.monotonic() >= measure_at:
                    self._measure()
                    measure_at = time.monotonic() + _MEASURE_SECONDS

    def _measure(self) -> None:
        size = _size_on_disk(self._directory)
        if size > SCRATCH_LIMIT:
            raise SourceFailed(f"{self._where}: fetching it takes {size} bytes on disk, more than {SCRATCH_LIMIT}")


def _size_on_disk(directory: Path) -> int:
    """Bytes of all files below; git makes and removes files meanwhile."""
    size = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                # Blocks, not lengths: small files take whole ones.
                size += os.lstat(f"{parent}/{name}").st_blocks * 512
    return size


def _bounds(url: str, hosts: SourceHosts, where: str) -> tuple[str, ...]:
    """Settings that keep git from any other host than the one that was checked, and from another address of it."""
    address = hosts.resolve(url, where)
    settings = ("http.followRedirects=false",)
    if address is None:
        return settings
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise SourceFailed(f"{where}: {parts.scheme} addresses are fetched from hosts that are allowed by their name")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    shown = f"[{address}]" if ":" in address else address
    return (*settings, f"http.curloptResolve={parts.hostname}:{port}:{shown}")


def _environment(home: Path) -> dict[str, str]:
    return {
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
        "GIT_ALLOW_PROTOCOL": ":".join(_PROTOCOLS),
        "GIT_LFS_SKIP_SMUDGE": "1",
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill git's process group if git still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
