"""Benchmarks that are directories of tasks: Harbor, and the Exercism exercises of aider's benchmark."""

import ast
import base64
import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from dgym.api import Evaluation, InlineFile
from dgym.benchmarks.datasets._adapter import Adapter, Fields, ImageNames, Row, RowError
from dgym.errors import ManifestError
from dgym.untrusted import parse_toml
from dgym.workspace.patches import FileVersion, write_patch

_LARGEST_BYTES = 200 * 1024
_WORKDIR = re.compile(r"^WORKDIR\s+(\S+)", re.MULTILINE | re.IGNORECASE)
_NOT_FILES = frozenset({"Dockerfile", "docker-compose.yaml", "docker-compose.yml", ".dockerignore"})
_REWARD = "reward"
# Harbor runs the tests as root. If /tests or /logs/verifier cannot be created, temporary directories replace them.
_HARBOR = """\
#!/bin/bash
tests=/tests logs=/logs/verifier
{{ mkdir -p "$tests" && [ -w "$tests" ]; }} 2>/dev/null || tests=$(mktemp -d)
{{ mkdir -p "$logs" && [ -w "$logs" ]; }} 2>/dev/null || logs=$(mktemp -d)
rm -f "$logs"/reward.txt "$logs"/reward.json
{files}
[ "$tests" = /tests ] || find "$tests" -type f -name '*.sh' -exec sed -i "s#/tests\\b#$tests#g" {{}} +
[ "$logs" = /logs/verifier ] || find "$tests" -type f -name '*.sh' -exec sed -i "s#/logs/verifier#$logs#g" {{}} +
bash "$tests/test.sh"
value=$(cat "$logs/reward.txt" 2>/dev/null ||
  sed -n 's/.*"reward"[^0-9]*\\([0-9.]*\\).*/\\1/p' "$logs/reward.json" 2>/dev/null)
echo ">>>>> Start Test Output"
if printf '%s' "$value" | grep -Eq '^[[:space:]]*1(\\.0*)?[[:space:]]*$'
then echo "PASSED reward"; else echo "FAILED reward"; fi
echo ">>>>> End Test Output"
"""


class Harbor(Adapter):
    """Harbor tasks: ``task.toml``, ``instruction.md``, and ``tests/test.sh``, which writes a reward."""

    name: ClassVar[str] = "harbor"
    summary: ClassVar[str] = "Harbor: a directory of tasks, scored by the reward that tests/test.sh writes"

    def rows(self, source: Path) -> Iterator[dict[str, Any]]:
        """A row for each directory with a ``task.toml``."""
        found = sorted(one.parent for one in (*source.glob("task.toml"), *source.glob("*/task.toml")))
        if not found:
            raise ManifestError(f"{source}: no directory in it has a task.toml")
        for directory in found:
            yield {"instance_id": directory.name, "files": _read_tree(directory)}

    def row(self, data: Mapping[str, Any], images: ImageNames) -> Row:
        """Convert a task directory."""
        fields = Fields(data)
        instance, files = fields.text("instance_id"), _files(data)
        for needed in ("task.toml", "instruction.md", "tests/test.sh"):
            if needed not in files:
                raise RowError(f"{needed} is missing")
        settings = parse_toml(files["task.toml"])
        if settings is None:
            raise RowError(
                "task.toml is not valid TOML, has more than 512 KiB or exceeds the limits of the parser; correct it"
            )
        image = settings.get("environment", {}).get("docker_image")
        dockerfile = files.get("environment/Dockerfile", b"").decode("utf-8", "replace")
        directory = ([found[1] for found in _WORKDIR.finditer(dockerfile)] or ["/app"])[-1]
        named = image is not None or images.template is not None
        inline = {} if named else _below(files, "environment/", without=_NOT_FILES)
        if not named and not inline:
            raise RowError(
                "task.toml does not name a docker_image, and environment does not have files; give --image TEMPLATE"
            )
        return Row(
            instance=instance,
            instructions=files["instruction.md"].decode("utf-8", "replace"),
            image=images.name(image, "{{ instance_id }}", {"instance_id": instance}) if named else None,
            working_directory=directory if directory.startswith("/") else "/app",
            files=_inline(inline),
            evaluation=Evaluation(
                script=_HARBOR.format(files="\n".join(_unpacked(_below(files, "tests/")))), fail_to_pass=(_REWARD,)
            ),
            difficulty=str(settings.get("metadata", {}).get("difficulty", "")),
            timeout_seconds=max(1, min(3600, int(settings.get("verifier", {}).get("timeout_sec", 1800)))),
        )


class Exercism(Adapter):
    """The Python exercises of Exercism, which aider's benchmark uses: a stub, its tests and its documents."""

    name: ClassVar[str] = "exercism"
    summary: ClassVar[str] = "Exercism's Python exercises (aider's benchmark): a checkout, or its exercises/practice"

    def rows(self, source: Path) -> Iterator[dict[str, Any]]:
        """A row for each exercise."""
        roots = (source / "exercises" / "practice", source)
        found = [sorted(one.parents[1] for one in root.glob("*/.meta/config.json")) for root in roots]
        exercises = next((one for one in found if one), [])
        if not exercises:
            raise ManifestError(f"{source}: no directory in it has a .meta/config.json")
        for directory in exercises:
            yield {"instance_id": directory.name, "files": _read_tree(directory)}

    def row(self, data: Mapping[str, Any], images: ImageNames) -> Row:  # noqa: ARG002 - exercises do not need an image
        """Convert an exercise."""
        fields = Fields(data)
        instance, files = fields.text("instance_id"), _files(data)
        try:
            config = json.loads(files[".meta/config.json"])["files"]
            stubs, tests, examples = (list(config[kind]) for kind in ("solution", "test", "example"))
        except (KeyError, TypeError, ValueError) as error:
            raise RowError(f".meta/config.json: {type(error).__name__}: {error}") from None
        missing = [path for path in (*stubs, *tests, *examples) if path not in files]
        if missing:
            raise RowError(f".meta/config.json names {missing[0]!r}, which is missing")
        if not stubs or not tests:
            raise RowError(".meta/config.json does not name a stub or a test")
        names = tuple(name for path in tests for name in _test_ids(path, files[path]))
        if not names:
            raise RowError(f"{tests[0]} has no test")
        documents = [f".docs/{name}.md" for name in ("introduction", "instructions", "instructions.append")]
        texts = [files[path].decode("utf-8", "replace").strip() for path in documents if path in files]
        visible = {path: text for path, text in files.items() if not path.startswith((".meta/", ".docs/"))}
        return Row(
            instance=instance,
            instructions="\n\n".join([*texts, f"Write it in {', '.join(stubs)}. Keep the names that are there."]),
            working_directory="/workspace",
            files=_inline(visible),
            fail_to_pass=names,
            solution=_example_patch(files, stubs, examples),
            entrypoint=f"python -m pytest -q {shlex.join(tests)}",
            read_only_patterns=tuple(f"/{path}" for path in tests),
            timeout_seconds=300,
        )


def _example_patch(files: Mapping[str, bytes], stubs: list[str], examples: list[str]) -> str:
    if len(stubs) != len(examples):
        return ""
    pairs = {
        stub: (FileVersion(files[stub]), FileVersion(files[example]))
        for stub, example in zip(stubs, examples, strict=True)
        if files[stub] != files[example]
    }
    return write_patch(pairs).decode("utf-8", "surrogateescape")


def _test_ids(path: str, source: bytes) -> Iterator[str]:
    """The pytest ids of the test functions and methods that the file itself defines."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise RowError(f"{path}: {error}") from None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield f"{path}::{node.name}"
        elif isinstance(node, ast.ClassDef):
            names = [one.name for one in node.body if isinstance(one, ast.FunctionDef) and one.name.startswith("test")]
            yield from (f"{path}::{node.name}::{name}" for name in dict.fromkeys(names))


def _read_tree(directory: Path) -> dict[str, str]:
    """All files by path, base64-encoded."""
    found: dict[str, str] = {}
    size = 0
    for file in sorted(directory.rglob("*")):
        if file.is_symlink() or not file.is_file() or {"__pycache__", ".git"} & set(file.parts):
            continue
        data = file.read_bytes()
        size += len(data)
        if size > 4 * _LARGEST_BYTES:
            raise ManifestError(f"{directory}: contains more than {4 * _LARGEST_BYTES:,} bytes")
        found[file.relative_to(directory).as_posix()] = base64.b64encode(data).decode()
    return found


def _files(data: Mapping[str, Any]) -> dict[str, bytes]:
    files = data.get("files")
    if not isinstance(files, dict):
        raise RowError("files is missing")
    return {str(path): base64.b64decode(text) for path, text in files.items()}


def _below(files: Mapping[str, bytes], prefix: str, without: frozenset[str] = frozenset()) -> dict[str, bytes]:
    below = {path.removeprefix(prefix): data for path, data in files.items() if path.startswith(prefix)}
    return {path: data for path, data in below.items() if path not in without}


def _inline(files: Mapping[str, bytes]) -> tuple[InlineFile, ...]:
    if sum(map(len, files.values())) > _LARGEST_BYTES:
        raise RowError(f"its files contain more than {_LARGEST_BYTES:,} bytes, which a manifest cannot")
    return tuple(_inline_file(path, data) for path, data in sorted(files.items()))


def _inline_file(path: str, data: bytes) -> InlineFile:
    try:
        return InlineFile(path=path, content=data.decode("utf-8"))
    except UnicodeDecodeError:
        return InlineFile(path=path, content_base64=base64.b64encode(data).decode())


def _unpacked(files: Mapping[str, bytes]) -> Iterator[str]:
    """Shell commands that write the files below ``$tests``."""
    for path, data in sorted(files.items()):
        parent = shlex.quote(posixpath.dirname(path) or ".")
        yield f'mkdir -p "$tests"/{parent} && base64 -d >"$tests"/{shlex.quote(path)} <<\'DGYM_FILE\''
        yield base64.encodebytes(data).decode().strip()
        yield "DGYM_FILE"
