"""Fetch repositories from git servers.

Git runs in a temporary directory with a fixed environment. It does not read the configuration of the machine or of the
user, run hooks or filters, or prompt, and uses only network protocols. dgym itself packs the files, so attributes of
the repository such as ``export-ignore`` have no effect. Submodules are not fetched.
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
from dgym.workspace.sources._archive import shown_url
from dgym.workspace.sources._bounded_program import OUTPUT_LIMIT, ProgramOutput, run_bounded
from dgym.workspace.sources._fetch import ANY_HOST, Cancellation, SourceHosts
from dgym.workspace.sources._tree import SIZE_LIMIT

SCRATCH_LIMIT = 3 * SIZE_LIMIT
"""Maximum size of git's files on disk for one revision: packs, temporary files and the checked out tree, in bytes."""

_MEMORY_BYTES = 512 * 1024**2
"""Maximum address space of each git process."""

_INODE_BYTES = 4096

_TAG_SECONDS = 60.0

_NAMES_BYTES = 32 * 1024**2
"""Maximum size of the list of all paths of a revision, in bytes."""

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
    # These settings keep git within the memory limit: it maps packs in parts and streams large files.
    "core.packedGitWindowSize=16m",
    "core.packedGitLimit=128m",
    "core.bigFileThreshold=16m",
    "core.deltaBaseCacheLimit=32m",
    "pack.threads=1",
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ABBREVIATED = re.compile(r"[0-9a-f]{7,39}")


class GitFetch:
    """Fetches one revision into ``directory``. The directory must be empty."""

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
            raise SourceFailed(f"{self._where}: {source.revision!r} is not a revision")
        self._settings = _SETTINGS if hosts.unbounded else (*_SETTINGS, *_bounds(source.url, hosts, self._where))

    def resolve(self) -> str | None:
        """Return the commit of the revision according to the server's list of branches and tags.

        Returns None for an abbreviated commit that is not in the list. Only a fetch can resolve it.

        Raises:
            SourceFailed: The server does not answer or does not have the revision.
        """
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
            raise SourceFailed(f"{self._where}: branch, tag or commit {revision!r} does not exist")
        return None

    def checkout(self, commit: str | None) -> str:
        """Check out ``commit`` into the directory, or the abbreviated revision if ``commit`` is None.

        Returns the full id of the commit.

        Raises:
            SourceFailed: The commit cannot be fetched or checked out.
        """
        self._checked_git("init", "--quiet", "--template=", ".")
        if commit is None or self._git("fetch", "--quiet", "--depth=1", "--", self._source.url, commit).status:
            # Some servers allow fetching only branches and tags. Servers of static files do not support --depth.
            everything = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
            self._checked_git("fetch", "--quiet", "--", self._source.url, *everything)
        wanted = f"{commit or self._source.revision}^{{commit}}"
        found = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", wanted)
        if found.status:
            raise SourceFailed(f"{self._where}: commit {self._source.revision!r} does not exist")
        resolved = found.output.strip()
        # A small repository can list the same directory many times on each level, so that a checkout would create
        # billions of files and exhaust the memory. The list of names fails first, because its size is limited.
        self._checked_git("ls-tree", "-r", "-t", "-z", "--name-only", resolved, output_limit=_NAMES_BYTES)
        self._checked_git("checkout", "--quiet", "--force", "--detach", resolved)
        return resolved

    def last_tag(self) -> str:
        """Return the name of the last tag before the revision, or "" if there is none.

        The history of the revision is fetched into the directory.
        """
        revision = self.resolve() or self._source.revision
        self._checked_git("init", "--quiet", "--bare", "--template=", ".")
        # The filter fetches only commits. With a server of static files, which does not support filters, git 2.39
        # does not terminate, so this fetch has a deadline of its own.
        self._deadline = time.monotonic() + _TAG_SECONDS
        fetch = ("fetch", "--quiet", "--filter=tree:0", "--", self._source.url)
        if self._git(*fetch, f"+{revision}:refs/heads/dgym").status:
            self._checked_git(*fetch, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
        answer = self._git("describe", "--tags", "--abbrev=0", "--end-of-options", f"{revision}^{{commit}}")
        return answer.output.strip() if answer.status == 0 else ""

    def _checked_git(self, *arguments: str, output_limit: int = OUTPUT_LIMIT) -> None:
        answer = self._git(*arguments, output_limit=output_limit)
        if answer.status:
            self._fail(f"git {arguments[0]} failed", answer)

    def _fail(self, what: str, answer: ProgramOutput) -> None:
        last = answer.error_output.strip().replace(self._source.url, shown_url(self._source.url)).splitlines()[-3:]
        raise SourceFailed(f"{self._where}: {what}: {' / '.join(last) or f'exit status {answer.status}'}")

    def _git(self, *arguments: str, output_limit: int = OUTPUT_LIMIT) -> ProgramOutput:
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
    """The size of all files below ``directory``, in bytes. Git may create and remove files during the measurement."""
    size = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                # st_size would be too small: a small file takes a whole block, and an empty file takes an inode.
                size += max(os.lstat(f"{parent}/{name}").st_blocks * 512, _INODE_BYTES)
    return size


def _bounds(url: str, hosts: SourceHosts, where: str) -> tuple[str, ...]:
    """Settings that restrict git to the host that was checked, and to the address that was checked."""
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
