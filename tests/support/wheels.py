"""Package index for tests: a directory of wheels, which are generated or built from installed distributions."""

import ensurepip
import os
import sysconfig
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

PYTEST = ("pytest", "packaging", "pluggy", "iniconfig", "pygments")
HATCHLING = ("hatchling", "editables", "pathspec", "trove-classifiers", "tomlkit")


def wheel_files(
    name: str, version: str = "1", *, requires: Sequence[str] = (), files: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The files of a generated wheel, with ``files`` or an empty module."""
    info = f"{name}-{version}.dist-info"
    lines = "".join(f"Requires-Dist: {each}\n" for each in requires)
    content = {
        **(files or {f"{name}.py": ""}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    return {**content, f"{info}/RECORD": "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])}


def write_wheel(
    directory: Path,
    name: str,
    version: str = "1",
    *,
    requires: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> Path:
    """Write a generated wheel. The arguments are those of ``wheel_files``."""
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with ZipFile(path, "w") as wheel:
        for member, text in wheel_files(name, version, requires=requires, files=files).items():
            wheel.writestr(member, text)
    return path


def _write_installed(name: str, directory: Path) -> None:
    """Write a wheel of an installed distribution."""
    distribution = metadata.distribution(name)
    stem = f"{name.replace('-', '_')}-{distribution.version}"
    with ZipFile(directory / f"{stem}-py3-none-any.whl", "w") as wheel:
        for file in distribution.files or ():
            if name == "maturin" and file.parent.name == "bin":
                wheel.write(str(file.locate()), f"{stem}.data/scripts/{file.name}")
            if ".." not in file.parts and "__pycache__" not in file.parts and file.name != "RECORD":
                wheel.write(str(file.locate()), str(file))
        record = next(str(file) for file in distribution.files or () if file.name == "RECORD")
        wheel.writestr(record, "".join(f"{name},,\n" for name in wheel.namelist()))


def write_index(directory: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Fill ``directory`` with wheels of these distributions and pip. Returns variables that make it the only index."""
    for name in names:
        _write_installed(name, directory)
    # Linux distributions have pip's wheel in another directory.
    place = sysconfig.get_config_var("WHEEL_PKG_DIR") or Path(ensurepip.__file__).parent / "_bundled"
    bundled = next(Path(place).glob("pip-*.whl"))
    (directory / bundled.name).symlink_to(bundled)
    settings = directory / "uv.toml"  # uv does not have an environment variable for this option.
    settings.write_text(f'no-index = true\nfind-links = ["{directory}"]\n')
    pip = {"PIP_FIND_LINKS": str(directory), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    return {**pip, "UV_CONFIG_FILE": str(settings)}
