"""Operations on single files and directories: describe, list, read, replace, remove, find on PATH.

These operations check no permissions of the agent. The trusted side decides what an agent may see or change.
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
    """Returns a file name as text that can be encoded in UTF-8. Other bytes become backslash escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def type_of(mode):
    """Returns the protocol's name of a file type: file, directory, symlink or other."""
    for check, name in _TYPES:
        if check(mode):
            return name
    return "other"


def describe(absolute, shown, real_parent=None):
    """Returns the protocol's FileStat of one path; its type is "missing" if the path does not exist.

    ``real_parent`` is the resolved parent directory, if the caller has it; this avoids resolving each path.
    """
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
    """Returns the absolute path of a command that is started in ``directory`` with ``environment``, or None."""
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
    """Returns at most ``limit`` entries below ``root``, sorted by path. Symbolic links are not followed.

    Raises OSError if ``root`` cannot be listed; directories below it that cannot be listed are empty.
    """
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
    """Open a regular file for reading, without blocking, because the path may be a FIFO.

    Returns:
        The descriptor and the size in bytes.

    Raises:
        OSError: EISDIR for a directory, EINVAL for any other special file, EFBIG for more than ``limit`` bytes.
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


def read_chunks(descriptor, limit):
    """Yields the bytes of a file, at most ``limit`` even if the file grows meanwhile. Closes the descriptor."""
    try:
        while limit > 0:
            data = os.read(descriptor, min(64 * 1024, limit))
            if not data:
                return
            limit -= len(data)
            yield data
    finally:
        os.close(descriptor)


def write_atomically(path, chunks, mode):
    """Replace or create a file atomically, and create its parent directories.

    A symbolic link at ``path`` is replaced and not followed. If ``mode`` is None, the mode of the replaced file is
    kept, and a new file gets 0644. Raises OSError (EISDIR) if ``path`` is a directory.
    """
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
    """Remove a file, a link or a whole directory; does not raise if it is missing."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            _remove_directory(path)
        else:
            os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        pass


def _remove_directory(path):
    # Programs may leave directories without permissions. The owner can restore the permissions.
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
