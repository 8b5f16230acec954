"""Tests of the packaged chart: the package is reproducible, and Helm accepts it."""

import shutil
import subprocess

import pytest
import yaml

import dgym
from hack.release.build import Builder, ReleaseError
from tests.chart.conftest import CHART, ROOT

EPOCH = 1_700_000_000


@pytest.fixture
def source(tmp_path):
    """A directory with only the files that the chart is packaged from."""
    directory = tmp_path / "source"
    shutil.copytree(CHART, directory / "charts" / "dgym")
    (directory / "dgym").mkdir()
    shutil.copy(ROOT / "dgym" / "__init__.py", directory / "dgym")
    return directory


def package(source, output, **options):
    output.mkdir()
    return Builder(source, output, epoch=EPOCH, **options).chart()


def test_two_packages_are_the_same(helm, source, tmp_path):
    one = package(source, tmp_path / "one")
    shutil.copytree(source, tmp_path / "elsewhere")
    subprocess.run(["find", str(tmp_path / "elsewhere"), "-exec", "touch", "-d", "2001-01-01", "{}", "+"], check=True)
    assert package(tmp_path / "elsewhere", tmp_path / "two").read_bytes() == one.read_bytes()


def test_helm_renders_the_package_as_the_chart(helm, source, tmp_path):
    packaged = package(source, tmp_path / "one")
    rendered = helm("template", "dgym", str(packaged), "--namespace", "dgym-system")
    assert rendered.returncode == 0, rendered.stderr
    assert rendered.stdout == helm.template().stdout
    about = yaml.safe_load(helm("show", "chart", str(packaged)).stdout)
    assert (about["version"], about["appVersion"]) == (dgym.__version__, dgym.__version__)


def test_the_packaged_chart_uses_images_of_the_given_registry(helm, source, tmp_path):
    packaged = package(source, tmp_path / "one", registry="registry.example/team")
    text = helm("template", "dgym", str(packaged), "--namespace", "dgym-system").stdout
    images = {
        container["image"]
        for each in yaml.load_all(text, yaml.CSafeLoader)
        if each and each["kind"] == "Deployment"
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    assert images == {f"registry.example/team/dgym/{name}:{dgym.__version__}" for name in ("operator", "agent")}


def test_a_chart_of_another_version_is_refused(source, tmp_path):
    (source / "dgym" / "__init__.py").write_text('__version__ = "9.9.9"\n')
    with pytest.raises(ReleaseError, match=r"version and appVersion must be 9\.9\.9"):
        package(source, tmp_path / "one")


def test_a_chart_that_helm_rejects_is_refused(helm, source, tmp_path):
    (source / "charts" / "dgym" / "templates" / "broken.yaml").write_text("{{ fail `no` }}")
    with pytest.raises(ReleaseError, match="helm does not take the packaged chart"):
        package(source, tmp_path / "one")
