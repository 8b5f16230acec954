"""A writable virtual environment on top of read-only environments, into which the project of a task is installed.

Each sandbox gets a separate overlay; its path is the same in the sandbox and in the verifier. It is first on PATH and
on ``sys.path``. Installers write into it. The packages of the environments below it are imported through a ``.pth``
file. Their console scripts are written anew, because the first line of a script names its interpreter.
"""

import json
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import msgspec

from dgym.sandbox.local._environments import requirement_name
from dgym.sandbox.local._interpreter import Interpreter
from dgym.sandbox.local._rust import Rust

BASE_FILE = "~dgym_base.pth"
"""The site module reads ``.pth`` files in the order of their names, so this file is read after those of the project."""
CARGO_HOME = "cargo"
"""Directory in an overlay for the configuration and the build output of cargo."""
_TOOLS = "tools"
_TOP_LEVEL = {
    "pip": ("pip", "pip-*.dist-info"),
    "setuptools": ("setuptools", "setuptools-*.dist-info", "pkg_resources", "_distutils_hack"),
    "wheel": ("wheel", "wheel-*.dist-info"),
}
_NOT_COPIED = ("python", "pypy", "activate", "Activate", "pydoc")
_SCRIPT_BYTES = 64 * 1024
_HEAD_LINES = 3
_TEXT_BYTES = 1024**2
_SYSTEM_PROGRAMS = (Path("/usr/bin"), Path("/bin"))


class ProjectLayer(msgspec.Struct, frozen=True, kw_only=True):
    """An installed project: the files that its installation wrote, and the tools for its build.

    Attributes:
        build_python: Interpreter of the environment that has the project's build requirements.
        tools: Distributions that are imported from that environment even if the environment of the task has them too,
            because ``python -m venv`` installs an old pip and setuptools there.
        archives: Tars of the files in the workspace and in the overlay. A tar without files has 0 bytes. None during
            the installation.
        places: Paths of the workspace and of the overlay during the installation, which the files may contain.
        rust: Rust toolchain of the project.
        built: Paths in the workspace that are not in the source.
    """

    build_python: str
    tools: tuple[str, ...] = ()
    archives: tuple[Path, Path] | None = None
    places: tuple[str, str] = ("", "")
    rust: Rust | None = None
    built: tuple[str, ...] = ()


def write_overlay(
    directory: Path, inside: str, interpreter: Interpreter, build: Interpreter, tools: Iterable[str]
) -> None:
    """Create an environment without packages in ``directory``, whose path in the sandbox is ``inside``."""
    programs, packages = directory / "bin", directory / _packages(interpreter)
    programs.mkdir(parents=True)
    packages.mkdir(parents=True)
    if (own := interpreter.bin_directory.parent / "pyvenv.cfg").is_file():
        shutil.copyfile(own, directory / "pyvenv.cfg")
    else:
        version = ".".join(map(str, interpreter.version))
        home = Path(interpreter.base_executable).parent
        (directory / "pyvenv.cfg").write_text(
            f"home = {home}\ninclude-system-site-packages = true\nversion = {version}\n"
        )
    for name in ("python", "python3", f"python{interpreter.version[0]}.{interpreter.version[1]}"):
        (programs / name).symlink_to(interpreter.base_executable)
    below = [each for each in (interpreter, build) if (each.bin_directory.parent / "pyvenv.cfg").is_file()]
    _link_tools(directory / _TOOLS, build, tools)
    lines = [f"{inside}/{_TOOLS}\n"]
    lines += [
        f"import site; site.addsitedir({str(each.bin_directory.parent / _packages(each))!r})\n"
        for each in dict.fromkeys(below)
    ]
    (packages / BASE_FILE).write_text("".join(lines))
    for each in dict.fromkeys((build, interpreter) if tools else (interpreter, build)):
        _copy_programs(each, programs, f"{inside}/bin/python")


def write_cargo_home(directory: Path, inside: str, rust: Rust, crates: str | None) -> None:
    """Configure cargo in an overlay to work offline. ``crates`` is the path of the crates inside the sandbox."""
    for program in ("cargo", "rustc", "rustdoc"):
        if Path(rust.toolchain, "bin") not in _SYSTEM_PROGRAMS:
            (directory / "bin" / program).symlink_to(Path(rust.toolchain, "bin", program))
    lines = ["[net]", "offline = true", "[build]", f"target-dir = {json.dumps(f'{inside}/{CARGO_HOME}/target')}"]
    if crates is not None:
        lines += ["[source.crates-io]", 'replace-with = "vendored"']
        lines += ["[source.vendored]", f"directory = {json.dumps(crates)}"]
    (directory / CARGO_HOME).mkdir()
    (directory / CARGO_HOME / "config.toml").write_text("\n".join([*lines, ""]))


def _link_tools(directory: Path, build: Interpreter, tools: Iterable[str]) -> None:
    directory.mkdir()
    packages = build.bin_directory.parent / _packages(build)
    for name in (entry for tool in tools for entry in _TOP_LEVEL[tool]):
        for path in packages.glob(name):
            (directory / path.name).symlink_to(path)


def relocated(archive: Path, target: Path, places: Iterable[tuple[str, str]]) -> Path:
    """Copy ``archive`` to ``target``. In text files, the first path of each pair in ``places`` becomes the second."""
    pairs = [(os.fsencode(old), os.fsencode(new)) for old, new in places if old != new]
    with tarfile.open(archive) as source, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as copy:
        for member in source:
            stream = source.extractfile(member) if member.isreg() else None
            if stream is not None and member.size <= _TEXT_BYTES:
                data = stream.read()
                if b"\0" not in data:
                    for old, new in pairs:
                        data = data.replace(old, new)
                    member.size = len(data)
                stream = BytesIO(data)
            copy.addfile(member, stream)
    return target


def distribution_names(interpreter: Interpreter) -> set[str]:
    """Return the normalized names of the distributions in an environment, without importing code from it."""
    packages = interpreter.bin_directory.parent / _packages(interpreter)
    return {requirement_name(path.name.partition("-")[0]) for path in packages.glob("*.dist-info")}


def _packages(interpreter: Interpreter) -> str:
    name = "pypy" if interpreter.cache_tag.startswith("pypy") else "python"
    return f"lib/{name}{interpreter.version[0]}.{interpreter.version[1]}/site-packages"


def _copy_programs(interpreter: Interpreter, programs: Path, python: str) -> None:
    """Write the console scripts of ``interpreter`` so that they run under ``python``, and link its other programs."""
    directory = interpreter.bin_directory
    if directory in _SYSTEM_PROGRAMS:
        return  # They are on PATH, and belong to the system's interpreter.
    in_environment = (directory.parent / "pyvenv.cfg").is_file()
    for path in _programs(directory):
        target = programs / path.name
        with suppress(OSError):
            if target.is_symlink() or target.exists():
                continue
            script = _script_for(path, directory, python)
            if script is not None:
                target.write_bytes(script)
                target.chmod(0o755)
            elif in_environment:
                target.symlink_to(path)


def _programs(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if not path.name.startswith(_NOT_COPIED) and path.is_file() and os.access(path, os.X_OK):
            yield path


def _script_for(path: Path, directory: Path, python: str) -> bytes | None:
    """Return a console script of ``directory``, changed to run under ``python``; None if it is not a script."""
    if path.stat().st_size > _SCRIPT_BYTES:
        return None
    data = path.read_bytes()
    head = data.splitlines(keepends=True)[:_HEAD_LINES]
    if not data.startswith(b"#!"):
        return None
    named = os.fsencode(directory) + b"/"
    for index, line in enumerate(head):
        before, found, after = line.partition(named)
        if found and before.rstrip(b"\"' ").endswith((b"#!", b"exec")):
            name = after.split()[0].strip(b"\"'")
            head[index] = line.replace(named + name, os.fsencode(python), 1)
            return b"".join(head) + data[sum(map(len, data.splitlines(keepends=True)[:_HEAD_LINES])) :]
    return None
