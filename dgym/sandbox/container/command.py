"""The command line that puts a runner into a container.

What the container may do is listed: no network, no capabilities, no new privileges, bounds on memory, processes and
processors, the runner read-only, and no log of its output, which is the connection to the runner.

A repository that is delivered gets a workspace of an ordinary user: the container begins as root with the few
capabilities it takes to make one, and drops all of them for good before the runner starts. Where the image itself
holds the repository, its own user runs the programs, or they could not write what that user owns.
"""

import csv
import io
from dataclasses import dataclass, field

from dgym.errors import ManifestError
from dgym.sandbox.container.engine import Engine, Image
from dgym.sandbox.protocol import Limits

LABEL = "dev.dgym.sandbox"
RUNNER_INSIDE = "/opt/dgym/runner"
RUN_INSIDE = "/run/dgym"
USER = "1000:1000"
"""The user that programs run as in an image of root."""

SPARE_PROCESSES = 64
"""Room for the runner's threads: the engine counts tasks, the limit means processes."""

SPARE_BYTES = 64 * 1024**2
"""Room for the runner, so that its watchdog ends the largest command before the kernel picks a victim."""

_RUN_BYTES = 64 * 1024**2
_WORKSPACE_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "SETGID", "SETUID")

# Written for every Python the runner is written for. Everything after the exec is without capabilities: they end with
# the change to an ordinary user, and no_new_privs keeps what the bounding set still has from coming back.
_LAUNCHER = """
import grp, os, pwd, shutil, sys

wanted, workspace = sys.argv[1:3]
user, _, group = wanted.partition(":")
try:
    entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
except KeyError:
    if not user.isdigit():
        sys.exit("the image has no user %r" % user)
    entry = None
uid = int(user) if entry is None else entry.pw_uid
gid = 0 if entry is None else entry.pw_gid
if group:
    gid = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
home = "/home/agent" if entry is None else entry.pw_dir
if entry is None:
    try:
        with open("/etc/passwd", "a") as file:
            file.write("agent:x:%d:%d::%s:/bin/sh\\n" % (uid, gid, home))
        os.makedirs(home, exist_ok=True)
        os.chown(home, uid, gid)
    except OSError:
        pass
os.makedirs(workspace, exist_ok=True)
for name in os.listdir(workspace):
    path = os.path.join(workspace, name)
    shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)
os.chown(workspace, uid, gid)
os.setgroups([])
os.setgid(gid)
os.setuid(uid)
os.environ["HOME"] = home
os.chdir("/")
os.execv(sys.executable, [sys.executable] + sys.argv[3:])
"""


@dataclass(frozen=True, kw_only=True)
class Container:
    """One container to start. ``delivered``: its workspace begins empty; otherwise the image holds the repository.

    ``in_place``: programs run as the image's user even where a repository is delivered.
    """

    name: str
    scope: str
    image: Image
    runner: str
    workspace: str
    interpreter: str = "python3"
    delivered: bool = True
    in_place: bool = False
    limits: Limits = field(default_factory=Limits)
    cpus: float | None = None

    @property
    def user(self) -> str | None:
        """The user that programs run as in a delivered workspace; None: the image's user, in place."""
        if self.in_place or not self.delivered:
            return None
        return USER if self.image.is_root else self.image.user


def command_line(engine: Engine, container: Container) -> list[str]:
    """The arguments of the engine's program that run the container attached to our standard streams."""
    arguments = [
        *("run", "--rm", "--interactive", "--name", container.name, "--label", f"{LABEL}={container.scope}"),
        *("--pull", "never", "--log-driver", "none", "--no-healthcheck", "--sig-proxy=false"),
        *("--network", "none", "--hostname", "dgym", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--workdir", "/", "--env", f"TMPDIR={RUN_INSIDE}"),
        *("--tmpfs", f"{RUN_INSIDE}:rw,nosuid,nodev,exec,size={_RUN_BYTES},mode=1777"),
        *_without_proxies(engine),
        *("--mount", _mount(engine, container.runner)),
        *_bounds(engine, container),
    ]
    runner = ["-I", "-S", "-B", f"{RUNNER_INSIDE}/__main__.py", "--stdio"]
    if container.user is not None:
        arguments += ["--user", "0:0"]
        for capability in _WORKSPACE_CAPABILITIES:
            arguments += ["--cap-add", capability]
        runner = ["-I", "-S", "-B", "-c", _LAUNCHER, container.user, container.workspace, *runner]
    return [*arguments, "--entrypoint", _program(container.interpreter), container.image.id, *runner]


def _without_proxies(engine: Engine) -> list[str]:
    """Keep the user's proxies, and passwords in their addresses, out of the container: it has no network."""
    if engine.flavor == "podman":
        return ["--http-proxy=false"]
    names = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY")
    # docker adds those of its configuration unless they are set.
    return [word for name in names for each in (name, name.lower()) for word in ("--env", f"{each}=")]


def _bounds(engine: Engine, container: Container) -> list[str]:
    """What the engine enforces; what it cannot, the runner's own watchdog does."""
    limits = container.limits
    arguments: list[str] = []
    if engine.memory and limits.memory_bytes is not None:
        size = str(limits.memory_bytes + SPARE_BYTES)
        arguments += ["--memory", size, "--memory-swap", size]
    if engine.processes and limits.processes is not None:
        arguments += ["--pids-limit", str(limits.processes + SPARE_PROCESSES)]
    if engine.cpus and container.cpus is not None:
        arguments += ["--cpus", f"{container.cpus:g}"]
    return arguments


def _mount(engine: Engine, runner: str) -> str:
    fields = ["type=bind", f"source={runner}", f"target={RUNNER_INSIDE}", "readonly"]
    if engine.selinux and engine.flavor == "podman":
        fields.append("relabel=shared")
    written = io.StringIO()
    csv.writer(written, lineterminator="").writerow(fields)
    return written.getvalue()


def _program(interpreter: str) -> str:
    if interpreter.startswith(("[", "-")):
        raise ManifestError(f"interpreter {interpreter!r} is not the name or path of a program, such as python3")
    return interpreter
