"""Tests that the pages about the cluster agree with the code: reasons, templates and manifests."""

import re
from pathlib import Path

import yaml
from click.testing import CliRunner

import dgym
from dgym.api import TREATMENTS, ProgressReason
from dgym_operator.__main__ import main as operator
from dgym_operator.controllers.episode._pod_status import GATED

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def page(name):
    return (ROOT / "docs" / name).read_text("utf-8")


def rows(text):
    """The cells of every row of every table."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "]


def test_every_reason_is_explained_with_its_treatment():
    table = {cells[0].strip("` "): cells for cells in rows(page("troubleshooting.md"))}
    assert {reason: table[reason][1] for reason in TREATMENTS} == {
        reason: treatment.value for reason, treatment in TREATMENTS.items()
    }
    for reason in (*ProgressReason, GATED, "Suspended"):
        assert len(table[reason]) == 3, reason
    assert {*table} - {"reason"} == {*TREATMENTS, *(reason.value for reason in ProgressReason), GATED, "Suspended"}


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
    pages = map(page, ("kubernetes.md", "tenancy.md", "sandbox-pools.md"))
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
    """The anchors of a page's headings. For a Python source, the anchors of its classes on the documentation site."""
    if path.suffix in (".svg", ".webp"):  # GitHub and the theme select a picture with these anchors
        return {"gh-light-mode-only", "gh-dark-mode-only"}
    heading = r"^class (\w+)" if path.suffix == ".py" else r"^#+ (.*)$"
    found = re.findall(heading, path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in found}
