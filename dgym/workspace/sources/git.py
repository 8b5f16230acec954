"""Repositories on git servers.

Git runs in a directory of ours with an environment of ours: no configuration of the machine or its user, no hooks, no
prompts, no filters, network protocols only. What it fetched is packed by us; an ``export-ignore`` in the tree has no
say. Submodules are not fetched.
"""

import contextlib
import math
import os
import re
import time
from pathlib import Path
from urllib.parse import urlsplit

from dgym.api import GitSource
from dgym.errors import SourceFailed
from dgym.workspace.sources.archive import shown_url
from dgym.workspace.sources.child import OUTPUT_LIMIT, Answer, run_bounded
from dgym.workspace.sources.fetch import ANY_HOST, Cancellation, SourceHosts
from dgym.workspace.sources.tree import SIZE_LIMIT

SCRATCH_LIMIT = 3 * SIZE_LIMIT
"""What git may have on disk for one revision: packs, what it makes of them, and the tree."""

_MEMORY_BYTES = 512 * 1024**2
"""The address space of each process of git."""

_INODE_BYTES = 4096

_TAG_SECONDS = 60.0

_NAMES_BYTES = 32 * 1024**2
"""Paths of all files of a revision."""

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
    # Within the bound on memory: packs are mapped piece by piece, and large files are streamed.
    "core.packedGitWindowSize=16m",
    "core.packedGitLimit=128m",
    "core.bigFileThreshold=16m",
    "core.deltaBaseCacheLimit=32m",
    "pack.threads=1",
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ABBREVIATED = re.compile(r"[0-9a-f]{7,39}")


class GitFetch:
    """Fetches one revision into ``directory``, which must be empty."""

    def __init__(
        self, source: GitSource, directory: Path, cancellation: Cancellation, hosts: SourceHosts = ANY_HOST
    ) -> None:
        self._source = source
        self._directory = directory
        self._cancellation = cancellation
        self._deadline = math.inf
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
        answer = self._git("ls-remote", "--", self._source.url, revision, f"{revision}^{{}}")
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
        # A directory that holds another ten times, which does the same, has more files than git can hold in memory.
        self._must("ls-tree", "-r", "-t", "-z", "--name-only", resolved, output_limit=_NAMES_BYTES)
        self._must("checkout", "--quiet", "--force", "--detach", resolved)
        return resolved

    def last_tag(self) -> str:
        """The name of the last tag before the revision; "" if there is none. The directory becomes its history."""
        revision = self.resolve() or self._source.revision
        self._must("init", "--quiet", "--bare", "--template=", ".")
        # Commits only. A server of plain files cannot leave files out; git 2.39 does not end then.
        self._deadline = time.monotonic() + _TAG_SECONDS
        fetch = ("fetch", "--quiet", "--filter=tree:0", "--", self._source.url)
        if self._git(*fetch, f"+{revision}:refs/heads/dgym").status:
            self._must(*fetch, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
        answer = self._git("describe", "--tags", "--abbrev=0", "--end-of-options", f"{revision}^{{commit}}")
        return answer.output.strip() if answer.status == 0 else ""

    def _must(self, *arguments: str, output_limit: int = OUTPUT_LIMIT) -> None:
        answer = self._git(*arguments, output_limit=output_limit)
        if answer.status:
            self._fail(f"git {arguments[0]} failed", answer)

    def _fail(self, what: str, answer: Answer) -> None:
        last = answer.complaint.strip().replace(self._source.url, shown_url(self._source.url)).splitlines()[-3:]
        raise SourceFailed(f"{self._where}: {what}: {' / '.join(last) or f'exit status {answer.status}'}")

    def _git(self, *arguments: str, output_limit: int = OUTPUT_LIMIT) -> Answer:
        settings = [word for setting in self._settings for word in ("-c", setting)]
        return run_bounded(
            ["git", *settings, *arguments],
            directory=self._directory,
            environment=_environment(self._directory),
            memory_bytes=_MEMORY_BYTES,
            cancellation=self._cancellation,
            where=f"{self._where}: {arguments[0]}",
            watch=self._measure,
            output_limit=output_limit,
        )

    def _measure(self) -> None:
        if time.monotonic() > self._deadline:
            raise SourceFailed(f"{self._where}: its tags were not fetched within {_TAG_SECONDS:g} s")
        size = _size_on_disk(self._directory)
        if size > SCRATCH_LIMIT:
            raise SourceFailed(f"{self._where}: fetching it takes {size} bytes on disk, more than {SCRATCH_LIMIT}")


def _size_on_disk(directory: Path) -> int:
    """Bytes of all files below; git makes and removes files meanwhile."""
    size = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                # Blocks, not lengths: small files take whole ones, and empty ones an inode.
                size += max(os.lstat(f"{parent}/{name}").st_blocks * 512, _INODE_BYTES)
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
