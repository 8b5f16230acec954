"""Tests of exports: bundles and single files."""

import re
import shutil
from html import unescape
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner

from dgym.cli.app import cli
from dgym.results import open_library
from dgym.ui import export


@pytest.fixture
async def bundle(results, tmp_path):
    directory = tmp_path / "bundle"
    assert await export(open_library(str(results)), directory) == 4
    return directory


def addresses(page):
    return [unescape(link) for link in re.findall(r'href="([^"]*)"', page.read_text())]


def test_every_address_of_a_bundle_is_a_file_of_it(bundle):
    pages = sorted(bundle.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        for address in addresses(page):
            parts = urlsplit(address)
            assert not parts.netloc, address
            if parts.scheme != "data":
                assert not parts.query, address
                target = page.parent / unquote(parts.path) if parts.path else page
                assert target.is_file(), f"{page}: {address}"
                if parts.fragment.startswith("step-"):
                    assert f'id="{parts.fragment}"' in target.read_text()


def test_a_bundle_leads_from_the_runs_to_a_patch_and_to_a_comparison(bundle):
    def follow(page, pattern):
        found = next(address for address in addresses(page) if re.search(pattern, address))
        return (page.parent / unquote(urlsplit(found).path)).resolve()

    listed = follow(bundle / "index.html", r"list/")
    assert "total += b" in follow(listed, r"calc-repair-0").read_text()
    pair = follow(bundle / "compare.html", r"pair/")
    assert 'id="parted"' in pair.read_text()


def test_a_single_file_contains_every_step_and_no_external_links(results, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["ui", str(results), "--single-file", "calc-repair-0"])
    assert done.exit_code == 0, done.output
    page = tmp_path / "calc-repair-0.html"
    assert 'id="step-8"' in page.read_text()
    assert {address[:1] for address in addresses(page)} == {"#", "d"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--single-file", "missing"], "no episode of that name or path"),
        (["--export", "RESULTS/bundle"], "is inside of"),
        (["--export", "."], "exists and is not an empty directory"),
    ],
)
def test_invalid_targets_of_an_export_are_reported(results, tmp_path, monkeypatch, arguments, problem):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(results, tmp_path / "RESULTS")
    done = CliRunner().invoke(cli, ["ui", "RESULTS", *arguments])
    assert done.exit_code == 2
    assert problem in done.output
