"""pytest for a bare environment, copied from the environment dgym itself runs in.

Most tasks need pytest and nothing else. Copying it takes a fraction of a second and no network, where an installer
takes seconds and needs one.
"""

import shutil
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from dgym.sandbox.local_interpreter import Interpreter

_NAMES = ("pytest", "iniconfig", "packaging", "pluggy", "pygments")


@cache
def pytest_distributions(interpreter: Interpreter) -> tuple[str, ...]:
    """``name==version`` of pytest and what it needs; nothing where they cannot be copied for ``interpreter``.

    What pytest needs depends on the version of Python, so only the version that runs dgym will do.
    """
    if interpreter.version[:2] != sys.version_info[:2]:
        return ()
    try:
        found = [metadata.distribution(name) for name in _NAMES]
    except metadata.PackageNotFoundError:
        return ()
    if not all(distribution.files for distribution in found):
        return ()
    return tuple(f"{name}=={distribution.version}" for name, distribution in zip(_NAMES, found, strict=True))


def copy_distributions(pinned: tuple[str, ...], environment: Path) -> None:
    """Copy installed distributions into a virtual environment, console scripts included."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = environment / "lib" / version / "site-packages"
    for pin in pinned:
        distribution = metadata.distribution(pin.partition("==")[0])
        for file in distribution.files or ():
            # Scripts lie above the packages and name their old interpreter: they are written anew below.
            if ".." in file.parts or "__pycache__" in file.parts or file.is_absolute():
                continue
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(str(file.locate())), target)
        for script in distribution.entry_points.select(group="console_scripts"):
            _write_script(environment / "bin", script)


def _write_script(directory: Path, script: metadata.EntryPoint) -> None:
    path = directory / script.name
    path.write_text(
        f"#!{directory / 'python'}\n"
        "import sys\n\n"
        f"from {script.module} import {script.attr}\n\n"
        'if __name__ == "__main__":\n'
        f"    sys.exit({script.attr}())\n"
    )
    path.chmod(0o755)
