"""What the pages about the cluster say is what the code does: reasons, settings, calls, rights, templates, metrics."""

import re
from pathlib import Path

import yaml
from click.testing import CliRunner

import dgym
from dgym.api import TREATMENTS, ProgressReason
from dgym.episodes.pod import PREFIX, AgentSettings
from dgym.wire.assignments import (
    ASSIGNMENTS_PATH,
    RESULTS_PATH,
    AgentReport,
    Assignment,
    AssignmentMode,
    AssignmentState,
    AssignmentStatus,
    StoredFile,
)
from dgym_operator.__main__ import main as operator
from dgym_operator.controllers.episode.pods import GATED

ROOT = Path(__file__).parents[3]
RULE = re.compile(r"resources: \[(.*?)\]\n(?:  resourceNames: .*\n)?  verbs: \[(.*?)\]")
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def page(name):
    return (ROOT / "docs" / name).read_text("utf-8")


def rows(text):
    """The cells of every line of every table."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "]


def test_every_reason_is_explained_with_its_treatment():
    table = {cells[0].strip("` "): cells for cells in rows(page("troubleshooting.md"))}
    assert {reason: table[reason][1] for reason in TREATMENTS} == {
        reason: treatment.value for reason, treatment in TREATMENTS.items()
    }
    for reason in (*ProgressReason, GATED, "Suspended"):
        assert len(table[reason]) == 3, reason
    assert {*table} - {"reason"} == {*TREATMENTS, *(reason.value for reason in ProgressReason), GATED, "Suspended"}


def test_agents_settings_are_those_there_are():
    text = page("operator.md")
    for name, field in AgentSettings.model_fields.items():
        default = int(field.default) if isinstance(field.default, float) else field.default
        shown = f"`{default}`" if default != "" else ""
        assert f"| `{PREFIX}{name.upper()}` | {shown} | {field.description} |" in text
    assert text.count(f"| `{PREFIX}") == len(AgentSettings.model_fields)


def test_the_calls_between_operator_and_agents():
    text = page("wire.md").partition("## Between operator and agents")[2]
    for message in (Assignment, AssignmentStatus, AgentReport, StoredFile):
        assert [name for name in message.__struct_encode_fields__ if f"`{name}`" not in text] == []
    for word in (*AssignmentMode, *AssignmentState):
        assert f"`{word}`" in text
    for path in (ASSIGNMENTS_PATH, RESULTS_PATH):
        assert f"GET {path}" in text


def test_the_operators_rights_are_those_of_the_chart():
    rules = (ROOT / "charts" / "dgym" / "templates" / "rbac" / "_rules.tpl").read_text("utf-8")
    sections = dict(re.findall(r'define "dgym\.rbac\.(\w+)" -}}(.*?)(?=\{\{- define|\Z)', rules, re.DOTALL))
    table = page("operator.md").partition("## Rights")[2].partition("With `watchNamespaces`")[0]
    shown = [(cells[1], set(re.findall(r"\w+", cells[2]))) for cells in rows(table)]
    granted = RULE.findall(sections["served"] + sections["own"])
    assert len(granted) > 10
    for resources, verbs in granted:
        assert any(resources in resource and {*verbs.split(", ")} <= known for resource, known in shown), resources


def test_the_template_of_the_page_makes_a_pod(tmp_path):
    (values,) = (yaml.safe_load(text) for text in BLOCK.findall(page("administration.md")) if "podTemplates:" in text)
    for name, template in values["podTemplates"].items():
        (tmp_path / f"{name}.yaml.j2").write_text(template)
        made = CliRunner().invoke(
            operator,
            ["render", str(ROOT / "examples" / "episode.yaml"), "--template", name],
            env={
                "DGYM_OPERATOR_POD_TEMPLATES_DIRECTORY": str(tmp_path),
                "DGYM_OPERATOR_SIDECAR_IMAGE": "localhost/sidecar:1",
                "DGYM_OPERATOR_SANDBOX_IMAGE": "localhost/sandbox:1",
            },
        )
        assert made.exit_code == 0, made.output
        assert yaml.safe_load(made.output)["spec"]["priorityClassName"] == "low"


def test_the_manifests_of_the_page_are_valid(tmp_path):
    pages = map(page, ("kubernetes.md", "administration.md", "sandbox-pools.md"))
    manifests = [text for text in BLOCK.findall("".join(pages)) if "kind: Episode" in text]
    assert manifests
    for text in manifests:
        (tmp_path / "episode.yaml").write_text(text)
        assert dgym.load(tmp_path / "episode.yaml")


def test_links_lead_somewhere():
    for name in (each.name for each in (ROOT / "docs").glob("*.md")):
        for path, heading in re.findall(r"\]\(([^)#:]*)(?:#([\w-]+))?\)", page(name)):
            target = ROOT / "docs" / path if path else ROOT / "docs" / name
            assert target.exists(), (name, path)
            assert not heading or heading in headings(target), (name, path, heading)
    for path, heading in re.findall(r"\]\(([^)#:]*)#([\w-]+)\)", (ROOT / "README.md").read_text("utf-8")):
        assert heading in headings(ROOT / path if path else ROOT / "README.md"), (path, heading)


def headings(path):
    """The anchors that a page's headings make."""
    found = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in found}
