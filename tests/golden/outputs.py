"""Current output for the golden files. Each function returns texts by file name."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import yaml
from click.testing import CliRunner

from dgym.cli.app import cli
from dgym_operator.__main__ import main as operator
from hack.cluster.build import find_binary
from tests.simulation.api_server import is_sandbox
from tests.simulation.cluster import POOL
from tests.simulation.schedule import Schedule, play
from tests.simulation.sidecar import NAMESPACE

ROOT = Path(__file__).parents[2]
MANIFESTS = Path(__file__).parent / "manifests.yaml"
COLUMNS = 100
MONITORING = ("serviceMonitor", "podMonitor", "rules", "dashboards")
CHART = {
    "default": ("default", ()),
    "everything": ("production", ()),
    "namespaced": ("namespaced", ()),
    "pools-and-monitoring": ("pools", tuple(f"metrics.{each}.enabled=true" for each in MONITORING)),
}
"""A file of tests/chart/values and additional values, by the name of the golden file."""
_VOLATILE = {
    *("dgymVersion", "dgymCommit", "durationSeconds", "elapsedSeconds", "reportedBySandbox", "resultURI", "startTime"),
    *("wallSeconds", "signature"),
}


def chart() -> dict[str, str]:
    """``helm template`` with four sets of values. Needs helm."""
    return {f"chart/{name}.yaml": _template(file, sets) for name, (file, sets) in CHART.items()}


def _template(file: str, sets: tuple[str, ...]) -> str:
    with tempfile.TemporaryDirectory() as home:
        command = [
            *(str(find_binary("helm")), "template", "dgym", "charts/dgym", "--namespace", "dgym-system"),
            *("--kube-version", "v1.35.0", "--values", f"tests/chart/values/{file}.yaml"),
            *(part for each in sets for part in ("--set", each)),
        ]
        environment = {**os.environ, "HELM_CONFIG_HOME": home, "HELM_CACHE_HOME": home}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return "---\n".join(map(_without_files, done.stdout.split("---\n")))


def _without_files(document: str) -> str:
    """Omit the CustomResourceDefinitions and dashboards. Other tests check these files."""
    if "\nkind: CustomResourceDefinition\n" in document:
        return document.partition("\nspec:\n")[0] + "\nspec: …\n"
    if "# Source: dgym/templates/monitoring/dashboards.yaml" in document:
        return document.partition("\ndata:\n")[0] + "\ndata: …\n"
    return document


def pods() -> dict[str, str]:
    """Pods from ``dgym-operator render``, and pods of Episodes and sandbox pools that the API server receives."""
    environment = {"DGYM_OPERATOR_SANDBOX_IMAGE": "sandbox-python:1", "DGYM_OPERATOR_SIDECAR_IMAGE": "sidecar:1"}
    texts = {}
    for template in ("restricted", "baseline"):
        arguments = ["render", str(MANIFESTS), "--template", template]
        done = CliRunner().invoke(operator, arguments, env=environment, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        texts[f"pods/{template}.yaml"] = done.output
        for kind, idle in (("episode", 0), ("pool", 1)):
            texts[f"pods/{kind}-created-{template}.yaml"] = _created_pod(template, idle)
    return texts


def _created_pod(template: str, idle: int) -> str:
    """The first sandbox pod that a simulated API server receives, of an Episode or, with ``idle``, of a SandboxPool."""
    received = []

    def observe(kind, plural, item):
        if (kind, plural) == ("ADDED", "pods") and is_sandbox(item):
            received.append(yaml.safe_dump(item, sort_keys=False, width=120))

    def prepare(api):
        source = {"files": [{"path": "a.py", "content": "x = 1\n"}]}
        task = {"metadata": {"name": "bug"}, "spec": {"podTemplate": template, "source": source}}
        api.create("debugtasks", NAMESPACE, {"apiVersion": "dgym.dev/v1alpha1", "kind": "DebugTask", **task})
        api.observers.append(observe)

    assert play(Schedule(1, (), 0.0, ("agent",), idle=idle), prepare=prepare) == []
    text = re.sub(r"\b[0-9a-f]{64}\b", "DIGEST", received[0])
    text = re.sub(r"\buid-\d+\b", "UID", re.sub(rf"\b{POOL}-[0-9a-f]{{8}}\b", f"{POOL}-SUFFIX", text))
    return re.sub(r"(?m)^  (creationTimestamp|resourceVersion|generation): .*\n", "", text)


def command_help() -> dict[str, str]:
    """``--help`` of every command."""
    return {
        f"help/{name}.txt": "\n\n".join(_help(name, group))
        for name, group in (("dgym", cli), ("dgym-operator", operator))
    }


def _help(path: str, command: click.Command) -> Iterator[str]:
    arguments = [*path.split()[1:], "--help"]
    root = cli if path.split()[0] == "dgym" else operator
    done = CliRunner().invoke(
        root, arguments, prog_name=path.split()[0], terminal_width=COLUMNS, max_content_width=COLUMNS
    )
    assert done.exit_code == 0, done.output
    yield f"$ {path} --help\n{done.output}".rstrip("\n")
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _help(f"{path} {name}", found)


def walkthroughs() -> dict[str, str]:
    """Observations and results of mini_nightmare's recorded walkthroughs, replayed by ``dgym run``."""
    with tempfile.TemporaryDirectory() as directory:
        arguments = ["run", "--bundled", "mini_nightmare", "--agent", "replay", "--sandbox", "none"]
        done = CliRunner().invoke(cli, [*arguments, "--results", directory], terminal_width=COLUMNS)
        assert done.exit_code == 0, done.output
        texts = {}
        for attempt in sorted(Path(directory).glob("local/*/*/1")):
            result = json.loads((attempt / "result.json").read_text("utf-8"))
            texts[f"walkthroughs/{result['task']}.txt"] = "\n".join(_walkthrough(attempt, result)) + "\n"
        return texts


def _walkthrough(attempt: Path, result: dict) -> Iterator[str]:
    yield f"files: {', '.join(sorted(each.name for each in attempt.iterdir()))}"
    for line in (attempt / "trajectory.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        observation = record.pop("observation", None)
        if observation is None:
            yield from ("", "# trajectory", *_fields(record))
            continue
        call = record["call"] or {"tool": "reset", "arguments": {}}
        yield from ("", f"# {record['seq']} {call['tool']} {json.dumps(call['arguments'])}")
        yield _stable(observation.pop("text"))
        yield from _fields(observation)
    yield from ("", "# result.json", *_fields(result))


def _fields(record: dict, path: str = "") -> Iterator[str]:
    for key, value in sorted(record.items()):
        if key in _VOLATILE:
            yield f"{path}{key}: …"
        elif isinstance(value, dict) and value:
            yield from _fields(value, f"{path}{key}.")
        elif key == "patch":
            yield f"{path}{key}:\n{value}".rstrip("\n")
        else:
            yield f"{path}{key}: {json.dumps(value)}"


def _stable(text: str) -> str:
    """Replace durations and addresses."""
    return re.sub(r"\b0x[0-9a-f]+\b", "0x…", re.sub(r"\bin \d+\.\d+s\b", "in …s", text))
