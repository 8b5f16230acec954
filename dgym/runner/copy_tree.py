"""Copy a repository out of the image: ``PYTHON -I -S copy_tree.py [--message FILE] SOURCE TARGET...``

Runs in a pod before the sandbox, as the user that programs will run as, under the image's own interpreter: the image
may have no shell. The contents go into the targets, which exist. Modes, times and links are kept, since what is
compiled or indexed beside a source records its time. The user of the copy may write everything in it, as root could in
the image.

Exits with 66 when the directory does not exist, with 77 when something in it may not be read, with 74 when copying
failed. The reason goes to standard error and, for the kubelet, into FILE.
"""

import os
import stat
import sys

NO_INPUT = 66
FAILED = 74
NOT_READABLE = 77

_CHUNK = 1024 * 1024
_MESSAGE_LIMIT = 1024
_REMEDY = (
    "the pod template 'restricted' runs programs as an ordinary user, which may not read it; "
    "set podTemplate to 'baseline', or make the image's files readable for all"
)


class Copying(object):
    """Copies one source into any number of targets, and reads each file once."""

    def __init__(self, targets):
        self._targets = targets
        self._copied = {}
        self.unreadable = []

    def tree(self, source):
        """Copy everything below ``source`` except sockets, pipes and devices, which do not belong to a repository."""
        pending = [(source, "")]
        while pending:
            directory, below = pending.pop()
            try:
                entries = list(os.scandir(directory))
            except PermissionError:
                self.unreadable.append(directory)
                continue
            for entry in entries:
                name = os.path.join(below, entry.name)
                if entry.is_symlink():
                    self._link(entry.path, name)
                elif entry.is_dir(follow_symlinks=False):
                    for target in self._targets:
                        os.makedirs(os.path.join(target, name), exist_ok=True)
                    pending.append((entry.path, name))
                elif entry.is_file(follow_symlinks=False):
                    self._file(entry.path, name)
            # Adding files changed the time of the directory, so it is set after them.
            if below:
                self._finish(os.stat(directory), below, 0o700)

    def _link(self, path, name):
        for target in self._targets:
            os.symlink(os.readlink(path), os.path.join(target, name))

    def _file(self, path, name):
        try:
            reading = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except PermissionError:
            self.unreadable.append(path)
            return
        try:
            status = os.fstat(reading)
            twin = self._copied.get((status.st_dev, status.st_ino))
            if twin is not None:
                for target in self._targets:
                    os.link(os.path.join(target, twin), os.path.join(target, name))
                return
            if status.st_nlink > 1:
                self._copied[status.st_dev, status.st_ino] = name
            self._contents(reading, name)
        finally:
            os.close(reading)
        self._finish(status, name, 0o600)

    def _contents(self, reading, name):
        writing = []
        try:
            for target in self._targets:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                writing.append(os.open(os.path.join(target, name), flags, 0o600))
            while True:
                data = os.read(reading, _CHUNK)
                if not data:
                    return
                for descriptor in writing:
                    _write(descriptor, data)
        finally:
            for descriptor in writing:
                os.close(descriptor)

    def _finish(self, status, name, least):
        mode = stat.S_IMODE(status.st_mode) & 0o777 | least
        for target in self._targets:
            path = os.path.join(target, name)
            os.chmod(path, mode)
            os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))


def _write(descriptor, data):
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _shown(path):
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return text if len(text) <= 300 else "..." + text[-300:]


def copy(source, targets):
    """Copy the tree. Returns the exit status, and the reason if it is not 0."""
    copying = Copying(targets)
    try:
        directory = stat.S_ISDIR(os.stat(source).st_mode)
    except PermissionError:
        return NOT_READABLE, _unreadable([source])
    except OSError:
        directory = False
    if not directory:
        return NO_INPUT, (
            "the image has no directory %s; set workingDirectory to the directory of its repository, or "
            "give the task a source" % _shown(source)
        )
    try:
        copying.tree(source)
    except OSError as error:
        path = _shown(error.filename) if isinstance(error.filename, (str, bytes)) else "writing"
        reason = "copying %s out of the image failed: %s: %s" % (_shown(source), path, error.strerror or error)
        return FAILED, reason
    if copying.unreadable:
        return NOT_READABLE, _unreadable(copying.unreadable)
    return 0, ""


def _unreadable(paths):
    others = " and %d more" % (len(paths) - 1) if len(paths) > 1 else ""
    return "cannot read %s%s: %s" % (_shown(paths[0]), others, _REMEDY)


def main(arguments):
    message = None
    if arguments[:1] == ["--message"]:
        message, arguments = arguments[1], arguments[2:]
    if len(arguments) < 2:
        sys.stderr.write(__doc__)
        return 2
    os.umask(0o022)
    status, text = copy(arguments[0], arguments[1:])
    if status:
        sys.stderr.write(text + "\n")
        if message is not None:
            with open(message, "wb") as file:
                file.write(text.encode("utf-8", "replace")[:_MESSAGE_LIMIT])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
