"""Single files and directories: describe, list, read, replace, remove, find on PATH.

Plain operations without policy: what an agent may see or change is decided on the trusted side.
"""

import errno
import os
import stat

from .descriptors import write_all

_TYPES = (
    (stat.S_ISREG, "file"),
    (stat.S_ISDIR, "directory"),
    (stat.S_ISLNK, "symlink"),
)


def printable(name):
    """A name as text; bytes that are not UTF-8 become escapes, so that every peer can decode it."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def type_of(mode):
    """The protocol's name of a file type."""
    for check, name in _TYPES:
        if check(mode):
            return name
    return "other"


def describe(absolute, shown, real_parent=None):
    """The protocol's FileStat of one path; a missing one is described as such."""
    try:
        status = os.lstat(absolute)
    except (FileNotFoundError, NotADirectoryError):
        return {"path": shown, "type": "missing", "real_path": printable(os.path.realpath(absolute))}
    kind = type_of(status.st_mode)
    if real_parent is not None and kind != "symlink":
        real = os.path.join(real_parent, os.path.basename(absolute))
    else:
        real = os.path.realpath(absolute)
    return {
        "path": shown,
        "type": kind,
        "size": status.st_size,
        "mode": stat.S_IMODE(status.st_mode),
        "mtime_ns": status.st_mtime_ns,
        "real_path": printable(real),
        "target": printable(os.readlink(absolute)) if kind == "symlink" else "",
    }


def find_program(command, environment, directory="/"):
    """The absolute path of a command that is started in ``directory`` with ``environment``; None if there is none."""
    if "/" in command:
        candidates = [command]
    else:
        path = environment.get("PATH", os.defpath)
        candidates = [os.path.join(entry, command) for entry in path.split(os.pathsep)]
    for candidate in candidates:
        found = os.path.normpath(os.path.join(directory, candidate))
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return found
    return None


def list_directory(root, depth, limit):
    """Entries below ``root``, sorted by path, never through symbolic links; at most ``limit``."""
    entries = []
    levels = [("", os.path.realpath(root))]
    os.listdir(root)
    for _ in range(depth):
        below = []
        for prefix, directory in levels:
            for name in _names(directory):
                if len(entries) >= limit:
                    break
                entry = describe(os.path.join(directory, name), prefix + printable(name), directory)
                entries.append(entry)
                if entry["type"] == "directory":
                    below.append((entry["path"] + "/", os.path.join(directory, name)))
        levels = below
    return sorted(entries, key=lambda entry: entry["path"])


def _names(directory):
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def open_regular(path, limit):
    """A descriptor of a regular file of at most ``limit`` bytes, and its size.

    Opened without blocking, since a program may have put a FIFO there.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    problem = None
    if stat.S_ISDIR(status.st_mode):
        problem = errno.EISDIR
    elif not stat.S_ISREG(status.st_mode):
        problem = errno.EINVAL
    elif status.st_size > limit:
        problem = errno.EFBIG
    if problem:
        os.close(descriptor)
        raise OSError(problem, os.strerror(problem), path)
    return descriptor, status.st_size


def read_chunks(descriptor, limit, size=64 * 1024):
    """The file's bytes; stops at ``limit`` even when the file grows meanwhile. Closes the descriptor."""
    try:
        while limit > 0:
            data = os.read(descriptor, min(size, limit))
            if not data:
                return
            limit -= len(data)
            yield data
    finally:
        os.close(descriptor)


def write_atomically(path, chunks, mode):
    """Replace or create a file in one step, parents included. A symbolic link at ``path`` itself is replaced."""
    parent = os.path.dirname(path)
    os.makedirs(parent, exist_ok=True)
    mode = _mode_for(path) if mode is None else mode
    temporary = os.path.join(parent, ".dgym-%s" % os.urandom(6).hex())
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            for chunk in chunks:
                write_all(descriptor, chunk)
            os.fchmod(descriptor, stat.S_IMODE(mode))
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _mode_for(path):
    try:
        status = os.lstat(path)
    except OSError:
        return 0o644
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return stat.S_IMODE(status.st_mode) if stat.S_ISREG(status.st_mode) else 0o644


def remove(path):
    """Remove a file, a link or a whole directory; no error when it is missing."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            _remove_directory(path)
        else:
            os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        pass


def _remove_directory(path):
    # Programs leave directories without permissions behind; their owner may still remove them.
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        try:
            os.chmod(path, 0o700)
        except OSError:
            pass
    for entry in list(os.scandir(path)):
        if entry.is_dir(follow_symlinks=False):
            _remove_directory(entry.path)
        else:
            os.unlink(entry.path)
    os.rmdir(path)
