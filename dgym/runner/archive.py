"""A short-lived program that packs and unpacks tars: tarfile's memory goes with it, the runner stays small.

``pack ROOT`` writes the paths named on standard input (NUL-separated) to standard output. ``unpack ROOT`` extracts
standard input below ROOT, and nothing anywhere else: no absolute names, no ``..``, no writing through symbolic links,
no links that lead outside, no special files, no set-user-id bits.
"""

import os
import stat
import sys
import tarfile


class Unsafe(Exception):
    """The archive holds something that must not be extracted."""


def parts_of(name):
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise Unsafe("%r leads outside" % name)
    return parts


def check_link(parts, target):
    """A symbolic link may only lead to places below the root."""
    if target.startswith("/"):
        raise Unsafe("the link %r leads to %r" % ("/".join(parts), target))
    depth = len(parts) - 1
    for part in target.split("/"):
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            depth += 1
        if depth < 0:
            raise Unsafe("the link %r leads to %r" % ("/".join(parts), target))


class Unpacker(object):
    """Extracts members below one root."""

    def __init__(self, root):
        self._root = os.path.realpath(root)
        self._sound = {""}
        self._modes = {}

    def extract(self, archive):
        for member in archive:
            parts = parts_of(member.name)
            if parts:
                self._extract(archive, member, parts)
        # Last, since a directory without write permission takes no files; deepest first for the same reason.
        for path in sorted(self._modes, reverse=True):
            os.chmod(path, self._modes[path])

    def _extract(self, archive, member, parts):
        self._directory(parts[:-1])
        path = os.path.join(self._root, *parts)
        if member.isdir():
            self._directory(parts)
            self._modes[path] = stat.S_IMODE(member.mode) & 0o777 | 0o700
            return
        self._clear(path, parts)
        if member.issym():
            check_link(parts, member.linkname)
            os.symlink(member.linkname, path)
        elif member.islnk():
            source = parts_of(member.linkname)
            self._directory(source[:-1])
            os.link(os.path.join(self._root, *source), path, follow_symlinks=False)
        elif member.isreg():
            self._write(archive.extractfile(member), path, stat.S_IMODE(member.mode) & 0o777, member.mtime)
        else:
            raise Unsafe("%r is a special file" % member.name)

    def _directory(self, parts):
        """Make the directory, in the place of symbolic links and files on the way to it."""
        for count in range(1, len(parts) + 1):
            key = "/".join(parts[:count])
            if key in self._sound:
                continue
            path = os.path.join(self._root, key)
            try:
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    os.unlink(path)
                    os.mkdir(path, 0o755)
            except FileNotFoundError:
                os.mkdir(path, 0o755)
            self._sound.add(key)

    def _clear(self, path, parts):
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return
        if stat.S_ISDIR(status.st_mode):
            raise Unsafe("%r is a directory already" % "/".join(parts))
        os.unlink(path)

    @staticmethod
    def _write(source, path, mode, mtime):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as target:
            for block in iter(lambda: source.read(64 * 1024), b""):
                target.write(block)
            target.flush()
            os.fchmod(descriptor, mode)
            if mtime:  # A member without a date is as old as its extraction.
                os.utime(descriptor, (mtime, mtime))


def unpack(root):
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        Unpacker(root).extract(archive)
    # What follows the end mark is padding: read it, so that the sender does not meet a closed pipe.
    while sys.stdin.buffer.read(64 * 1024):
        pass


def pack(root):
    names = [os.fsdecode(name) for name in sys.stdin.buffer.read().split(b"\0") if name]
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name in names:
            archive.add(os.path.join(root, name), arcname=name, filter=_anonymous)


def _anonymous(member):
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    try:
        {"pack": pack, "unpack": unpack}[sys.argv[1]](sys.argv[2])
    except OSError as problem:
        sys.stderr.write("%d %s: %s" % (problem.errno or 5, problem.strerror or problem, problem.filename or ""))
        sys.exit(3)
    except (tarfile.TarError, Unsafe) as problem:
        sys.stderr.write(str(problem))
        sys.exit(1)
