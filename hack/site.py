"""Hooks of MkDocs: generated pages of the reference, pictures of diagrams, and links to files outside of ``docs``.

Generated pages are created at each build and not stored. Commands come from click, custom resources from the structs of
``dgym.api``, calls from ``docs/openapi.json`` and ``dgym.wire.assignments``, files of results from the docstrings of
their structs, settings from their classes, and the Python interface from ``dgym.__all__``.
"""

import hashlib
import inspect
import json
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import dgym
from dgym.agents import Exchange
from dgym.api import custom_resource_definitions
from dgym.episodes.agent_pod import AgentPodSettings
from dgym.llm import Message, ModelCall, ModelSettings, TokenUsage
from dgym.results import StoredResult, TimedStep, TrajectoryHeader
from dgym.sidecar.settings import PREFIX, PooledSettings, ProcessSettings, Settings
from dgym.wire import Observation, assignments
from dgym.wire.calls import Call
from dgym.wire.outcome import ModelRecord, Provenance, ReportedBySandbox
from dgym_operator.settings import settings_table

ROOT = Path(__file__).resolve().parent.parent
PLACES = {
    "README.md": "index.md",
    "SECURITY.md": "reference/security.md",
    "CHANGELOG.md": "reference/changes.md",
    "CONTRIBUTING.md": "reference/contributing.md",
    "charts/dgym/README.md": "reference/chart.md",
}
"""Pages outside of ``docs``: path in the repository, and path in the site."""
FIELDS = "reference/files.md"
SOURCES = {
    "dgym/agents/_chat.py": FIELDS,
    "dgym/llm/_config.py": "reference/settings.md",
    "dgym/results/_attempts.py": FIELDS,
    "dgym/wire/messages.py": FIELDS,
    "dgym/wire/outcome.py": FIELDS,
}
"""Sources to which pages link in the repository, and the generated page to which the link leads in the site."""
_FILES = {
    "trajectory.jsonl": (TrajectoryHeader, TimedStep, Observation, Exchange, Message, ModelCall, TokenUsage),
    "result.json": (StoredResult, Provenance, ModelRecord, ReportedBySandbox),
}
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
THEMES = ("light", "dark")
_CALLS = "| call | token | purpose | body | answer | errors |\n|---|---|---|---|---|---|"
_LINK = re.compile(r"(?<=\]\()([^)#:\s]+)((?:#[^)\s]*)?)(?=\))")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add generated pages, pages outside of ``docs``, and files outside of ``docs`` that pages link to."""
    if moved := [path for path in SOURCES if not (ROOT / path).is_file()]:
        raise PluginError(f"{', '.join(moved)}: correct the path here and in the links of pages")
    pages = {place: (ROOT / path).read_text("utf-8") for path, place in PLACES.items()}
    pages["reference/commands.md"] = "\n".join(_commands())
    pages["reference/resources.md"] = "\n".join(_resources())
    pages["reference/calls.md"] = "\n".join(_calls())
    pages[FIELDS] = "\n".join(_files())
    pages["reference/settings.md"] = "\n".join(_settings())
    pages["reference/python.md"] = "# Python\n\n" + "\n".join(f"::: dgym.{name}" for name in dgym.__all__)
    for place, content in pages.items():
        files.append(File.generated(config, place, content=content))
    for page in list(files.documentation_pages()):
        for target, _ in _LINK.findall(page.content_string):
            path = _repository_path(page.src_uri, target)
            outside = path not in {**PLACES, **SOURCES} and not path.startswith("docs/") and (ROOT / path).is_file()
            if outside and files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Replace links between files of the repository by links between pages, and diagrams by their pictures."""

    def replace(link: re.Match[str]) -> str:
        path = _repository_path(page.file.src_uri, link[1])
        place = PLACES.get(path) or SOURCES.get(path) or path.removeprefix("docs/")
        return posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".") + link[2]

    return DIAGRAM.sub(lambda block: _picture(block[1], page.file.src_uri), _LINK.sub(replace, markdown))


def diagram_path(source: str, theme: str) -> str:
    """Return the path below ``docs`` of the picture of a diagram, which ``python -m hack.pictures`` writes."""
    return f"pictures/diagram-{hashlib.sha256(source.encode()).hexdigest()[:12]}-{theme}.svg"


def _picture(source: str, place: str) -> str:
    """Return Markdown of the pictures of a diagram, of which the theme shows one."""
    title = source.partition("accTitle: ")[2].partition("\n")[0]
    paths = [diagram_path(source, theme) for theme in THEMES]
    if missing := [path for path in paths if not (ROOT / "docs" / path).is_file()]:
        raise PluginError(f"{place}: a diagram has no picture {missing[0]}; run python -m hack.pictures diagrams")
    start = posixpath.dirname(place) or "."
    links = [posixpath.relpath(path, start) for path in paths]
    return "".join(f"![{title}]({link}#gh-{theme}-mode-only)\n" for link, theme in zip(links, THEMES, strict=True))


def _repository_path(place: str, target: str) -> str:
    """Return the path in the repository of the link ``target`` on the page at ``place`` in the site."""
    source = next((path for path, page in PLACES.items() if page == place), f"docs/{place}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def _commands() -> Iterator[str]:
    yield "# Command line\n\n::: mkdocs-click"
    for option in ("module: dgym.cli.app", "command: cli", "prog_name: dgym", "depth: 1", "style: plain"):
        yield f"    :{option}"


def _resources() -> Iterator[str]:
    yield "# Custom resources\n"
    yield "`kubectl explain episode.spec --recursive` prints the same from a cluster."
    for definition in custom_resource_definitions():
        spec = definition["spec"]
        names, version = spec["names"], spec["versions"][0]
        yield f"\n## {names['kind']}\n"
        yield f"`{spec['group']}/{version['name']}`, `kubectl get {names['plural']}`\n"
        yield "| field | type | description |\n|---|---|---|"
        properties = version["schema"]["openAPIV3Schema"]["properties"]
        for part in ("spec", "status"):
            yield from _fields(part, properties.get(part, {}))


def _fields(path: str, schema: dict[str, Any]) -> Iterator[str]:
    """Yield the rows of a field and of the fields below it."""
    items = schema.get("items", {})
    kind = schema.get("type", "any")
    if kind == "array":
        kind = f"list of {items.get('type', 'any')}"
    if "enum" in schema:
        kind = ", ".join(f"`{value}`" for value in schema["enum"] if value != "")
    text = " ".join(schema.get("description", "").split()).replace("|", "\\|")
    if "default" in schema:
        text += f" Default: `{json.dumps(schema['default'])}`."
    yield f"| `{path}` | {kind} | {text} |"
    for name, child in schema.get("properties", {}).items():
        yield from _fields(f"{path}.{name}", child)
    for name, child in items.get("properties", {}).items():
        yield from _fields(f"{path}[].{name}", child)


def _calls() -> Iterator[str]:
    document = json.loads((ROOT / "docs/openapi.json").read_text("utf-8"))
    yield "# Calls over HTTP\n"
    yield "The calls of a sidecar. [The wire](../wire.md) has tokens, order and repetition of calls;"
    yield "[openapi.json](../openapi.json) has the schemas.\n"
    yield _CALLS
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            answers = call["responses"]
            failed = [answer["description"] for status, answer in answers.items() if status >= "400"]
            errors = sorted({code for codes in failed for code in codes.split(", ")})
            body, answer = _body(call.get("requestBody", {})), _body(answers.get("200", {}))
            yield _call(f"{method.upper()} {path}", call.get("tags", ()), call["summary"], body, answer, errors)
    yield "\n## Agent pods\n"
    yield "The calls of an agent pod. [assignments.py](../../dgym/wire/assignments.py) has the messages.\n"
    yield _CALLS
    for each in vars(assignments).values():
        if isinstance(each, Call):
            body, answer = f"`{each.request.__name__}`" if each.request else "", f"`{each.response.__name__}`"
            yield _call(f"{each.method} {each.path}", each.roles, each.summary, body, answer, each.errors)


def _call(call: str, roles: Iterable[str], summary: str, body: str, answer: str, errors: Iterable[str]) -> str:
    """Return the row of a call."""
    codes = ", ".join(f"`{code}`" for code in errors)
    return f"| `{call}` | {', '.join(roles)} | {summary} | {body} | {answer} | {codes} |"


def _files() -> Iterator[str]:
    yield "# Files of results\n"
    yield "The fields of [trajectories and results](../trajectory.md). Observations, exchanges and what is in them"
    yield "leave out a field that has its default: empty, 0, null, or true for `ok`."
    for file, kinds in _FILES.items():
        yield f"\n## {file}"
        for kind in kinds:
            yield f"\n### {kind.__name__}\n\n{(inspect.getdoc(kind) or '').partition('Attributes:')[0].rstrip()}\n"
            yield from _described_fields(kind)


def _described_fields(kind: type[msgspec.Struct]) -> Iterator[str]:
    """Yield a table of the fields of ``kind``. A field without a description is an error."""
    yield "| field | default | meaning |\n|---|---|---|"
    described = _attributes(kind)
    for field in msgspec.structs.fields(kind):
        default = (
            f"`{json.dumps(field.default)}`" if field.default and isinstance(field.default, str | int | float) else ""
        )
        yield f"| `{field.encode_name}` | {default} | {described[field.name]} |"


def _attributes(kind: type) -> dict[str, str]:
    """Return the descriptions of fields from the sections ``Attributes`` of ``kind`` and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        for name, text in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE):
            found[name] = " ".join(text.split()).replace("|", "\\|")
    return found


def _settings() -> Iterator[str]:
    yield "# Settings\n"
    yield "Environment variables of the operator, of agent pods and of sidecars. The chart sets them;"
    yield "`operator.extraEnv` and `agents.extraEnv` add others. Each process reads them at its start."
    yield "A wrong one ends it with status 2.\n"
    yield f"## Operator\n\n{settings_table()}"
    yield "## Agent pods\n"
    yield "`LLM_CONFIG_FILE_PATH` is the path of [llm.yaml](../models.md). Region, endpoint and credentials of a bucket"
    yield f"are the `AWS_*` variables.\n\n{settings_table(AgentPodSettings)}"
    yield "\n## Sidecars\n\nPod templates set them.\n"
    yield "| environment variable | default |\n|---|---|"
    for name, default in msgspec.structs.asdict(ProcessSettings()).items():
        yield f"| `{PREFIX}{name.upper()}` | `{default}` |"
    yield ""
    for kind in (ProcessSettings, Settings, PooledSettings):
        yield f"::: {kind.__module__}.{kind.__name__}\n    options: {{members: false}}\n"
    yield "## ModelSettings\n\nThe settings of a model in [llm.yaml](../models.md).\n"
    yield from _described_fields(ModelSettings)


def _body(body: dict[str, Any]) -> str:
    """Return the name of the schema of a body, or its content type if it is bytes."""
    for kind, content in body.get("content", {}).items():
        return f"`{content['schema'].get('$ref', kind).rsplit('/', 1)[-1]}`"
    return ""
