"""Rust for projects that are built with maturin or setuptools-rust: a toolchain of this machine, and vendored crates.

Both are mounted read-only in the sandbox, where the project is built offline. Crates are downloaded outside the
sandbox, with a ``Cargo.toml`` that is generated here. The repository's own files must not be used, because cargo runs
programs that they name, such as the compiler in ``.cargo/config.toml``. Only crates from crates.io are downloaded,
because the address of a git repository could be a private repository of the user.
"""

import asyncio
import hashlib
import json
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dgym.errors import SetupFailed
from dgym.locks import hold_lock, whole_in_thread
from dgym.sandbox._cache import cache_directory
from dgym.sandbox.local._environments import Progress, run_installer
from dgym.untrusted import TEXT_LIMIT, parse_toml_documents

_BACKENDS = frozenset({"maturin", "setuptools-rust"})
_REGISTRY = re.compile(
    r"(registry\+https://github\.com/rust-lang/crates\.io-index|sparse\+https://index\.crates\.io)/?"
)
_PASSED_ON = re.compile(r"(CARGO|RUSTUP)_HOME|RUSTUP_TOOLCHAIN|CARGO_(HTTP|NET|REGISTRIES_CRATES_IO)_\w+")
_LOCK_SECONDS = 1800.0
_MOST_CRATES = 2000
_MOST_FILES = 200
_READY = ".dgym-ready"


class Rust(msgspec.Struct, frozen=True, kw_only=True):
    """Directories of this machine that a build with cargo needs.

    Attributes:
        toolchain: Directory that contains ``bin/cargo``.
        crates: Directory of vendored crates; None if the project has no crates as dependencies.
    """

    toolchain: str
    crates: str | None = None


def needs_rust(build_requirements: Iterable[str]) -> bool:
    """Return whether one of these normalized names is a build backend that uses cargo."""
    return not _BACKENDS.isdisjoint(build_requirements)


async def find_rust(source: Path, progress: Progress) -> Rust:
    """Find the toolchain, and download the crates that ``source``, a tar of the repository, locks or declares.

    Raises:
        SetupFailed: The toolchain was not found, or the crates cannot be downloaded.
    """
    toolchain = await _toolchain()
    files = await asyncio.to_thread(lambda: _vendoring_files(source))
    crates = await _vendor(toolchain, files, progress) if files else None
    return Rust(toolchain=str(toolchain), crates=None if crates is None else str(crates))


async def _toolchain() -> Path:
    rustc = shutil.which("rustc")
    problem = "rustc is not on PATH"
    if rustc is not None:
        lines = await _run([rustc, "--print", "sysroot"], "the toolchain of Rust is not known", lambda _: None)
        found = Path("".join(lines[-1:]))
        if os.access(found / "bin" / "cargo", os.X_OK) and not Path.home().is_relative_to(found):
            return found
        problem = f"{rustc} is of the toolchain {found}, which has no bin/cargo"
    raise SetupFailed(
        f"the project is built with Rust, which this machine does not have: {problem}; install rustc and cargo, or set "
        "environment.install to 'none' if the tests do not need an installed project"
    )


async def _vendor(toolchain: Path, files: Mapping[str, str], progress: Progress) -> Path:
    """Return a directory with the dependencies of the package in ``files``: Cargo.toml and, optionally, Cargo.lock."""
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:20]
    path = cache_directory() / "crates" / digest
    if not (path / _READY).is_file():
        async with hold_lock(
            path.with_name(f"{path.name}.lock"),
            waiting=lambda: progress("waiting for another process that downloads the same crates"),
            timeout_seconds=_LOCK_SECONDS,
            error=SetupFailed,
        ):
            if not (path / _READY).is_file():
                progress("downloading the crates of the project with cargo; none of them is run")
                await _download(f"{toolchain}/bin/cargo", files, path, progress)
    return path


async def _download(cargo: str, files: Mapping[str, str], path: Path, progress: Progress) -> None:
    await whole_in_thread(lambda: shutil.rmtree(path, ignore_errors=True))
    with tempfile.TemporaryDirectory(prefix="vendoring-", dir=path.parent) as scratch:
        manifest, crates = Path(scratch, "Cargo.toml"), Path(scratch, "crates")

        def write() -> None:
            for name, text in files.items():
                manifest.with_name(name).write_text(text)
            manifest.with_name("lib.rs").touch()

        def keep() -> None:
            (crates / _READY).touch()
            crates.rename(path)

        await whole_in_thread(write)
        options = ["--quiet", "--versioned-dirs", "--respect-source-config", "--manifest-path", str(manifest)]
        await _run(
            [cargo, "vendor", *options, str(crates)], "the crates of the project could not be downloaded", progress
        )
        await whole_in_thread(keep)


async def _run(command: list[str], failure: str, progress: Progress) -> list[str]:
    """Run a program of the user's toolchain in ``/``, because it reads configuration from all parent directories."""
    homes = {f"{name.upper()}_HOME": str(Path.home() / f".{name}") for name in ("cargo", "rustup")}
    own = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
    with tempfile.TemporaryDirectory(prefix="dgym-rust-") as home:
        return await run_installer(command, failure, progress, home=home, more={**homes, **own})


def _vendoring_files(source: Path) -> dict[str, str]:
    """Return the files of a package that depends on all crates of the repository; empty if it has no crates."""
    found = _read(source)
    lock = next((content for path, content in found.items() if path.endswith(".lock")), {})
    if packages := [each for each in _tables(lock.get("package")) if _is_locked(each)][:_MOST_CRATES]:
        # Each locked crate is a direct dependency, because the features that the project selects are not known here.
        wanted = [
            {"package": each["name"], "version": f"={each['version']}", "default-features": False} for each in packages
        ]
        version = 4 if lock.get("version") == 4 else 3
        return {
            "Cargo.toml": _manifest(wanted),
            "Cargo.lock": f"version = {version}\n" + "".join(map(_lock_entry, packages)),
        }
    wanted = [each for content in found.values() for each in _declared(content)][:_MOST_CRATES]
    return {"Cargo.toml": _manifest(wanted)} if wanted else {}


def _read(source: Path) -> dict[str, dict[str, Any]]:
    """Return the parsed ``Cargo.toml`` and ``Cargo.lock`` files by path, those nearest to the root first."""
    with tarfile.open(source, encoding="utf-8", errors="surrogateescape") as archive:
        members = [
            member
            for member in archive
            if member.name.rpartition("/")[2] in ("Cargo.toml", "Cargo.lock")
            and member.isreg()
            and member.size <= TEXT_LIMIT
        ]
        members.sort(key=lambda member: (member.name.count("/"), member.name))
        streams = {member.name: archive.extractfile(member) for member in members[:_MOST_FILES]}
        texts = {name: stream.read() for name, stream in streams.items() if stream is not None}
    documents = zip(texts, parse_toml_documents(list(texts.values())), strict=True)
    return {name: document for name, document in documents if document is not None}


def _tables(value: object) -> Iterator[dict[str, Any]]:
    """Yield the tables in a list or in a table; nothing for other types."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    yield from (each for each in values if isinstance(each, dict))


def _is_locked(package: Mapping[str, Any]) -> bool:
    texts = [package.get(name) for name in ("name", "version", "source", "checksum")]
    return all(isinstance(text, str) for text in texts) and _REGISTRY.fullmatch(str(texts[2])) is not None


def _lock_entry(package: Mapping[str, Any]) -> str:
    dependencies = [each for each in package.get("dependencies", ()) if isinstance(each, str)]
    texts = {name: package[name] for name in ("name", "version", "source", "checksum")}
    return "\n[[package]]\n" + _lines({**texts, **({"dependencies": dependencies} if dependencies else {})})


def _declared(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the dependencies on crates.io that a Cargo.toml declares, with their features."""
    workspace = manifest.get("workspace")
    places = [manifest, workspace if isinstance(workspace, dict) else {}, *_tables(manifest.get("target"))]
    for place in places:
        for kind in ("dependencies", "build-dependencies"):
            named = place.get(kind)
            for name, value in named.items() if isinstance(named, dict) else ():
                table = {"version": value} if isinstance(value, str) else value
                if not isinstance(table, dict) or not {"path", "git", "registry", "registry-index"}.isdisjoint(table):
                    continue
                if isinstance(table.get("version"), str):
                    chosen = {key: table[key] for key in ("version", "features", "default-features") if key in table}
                    yield {"package": table.get("package", name), **chosen}


def _manifest(wanted: Iterable[Mapping[str, Any]]) -> str:
    head = '[package]\nname = "dgym-crates"\nversion = "0.0.0"\nedition = "2018"\n[lib]\npath = "lib.rs"\n'
    return head + "".join(f"[dependencies.crate-{index}]\n{_lines(each)}" for index, each in enumerate(wanted))


def _lines(table: Mapping[str, Any]) -> str:
    # Strings, booleans and lists of strings have the same syntax in TOML and JSON.
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in table.items())
