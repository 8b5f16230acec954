"""Tests of repositories with an installed project: editable, offline, and equal in the sandbox and the verifier."""

import os
import shutil
import subprocess

import msgspec
import pytest

from dgym.api import DebugTask
from dgym.env import AsyncRepoEnv, Opening, RepoEnv, check_task
from dgym.errors import ManifestError, SetupFailed
from dgym.session import prepare
from tests.support.required import absent
from tests.support.wheels import HATCHLING, PYTEST, write_index

VARIATION = pytest.mark.thorough

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "acme-demo"
version = "1.2.3"
dependencies = ["iniconfig"]
optional-dependencies = {test = ["pytest", "acme-demo[more]"], more = ["pluggy"]}
scripts = {acme = "acme_demo.cli:main"}
entry-points.pytest11 = {acme = "acme_demo.plugin"}
"""
FILES = {
    "pyproject.toml": PYPROJECT,
    "src/acme_demo/__init__.py": "from importlib.metadata import version\n\n__version__ = version('acme-demo')\n\n\n"
    "def add(a, b):\n    return a - b\n",
    "src/acme_demo/cli.py": "from acme_demo import add\n\n\ndef main():\n    print(add(2, 3))\n",
    "src/acme_demo/plugin.py": "import pytest\n\n\n@pytest.fixture\ndef two():\n    return 2\n",
    "tests/test_acme.py": "import subprocess\n\nimport acme_demo\n\n\n"
    "def test_add(two):\n    assert acme_demo.add(two, 3) == 5\n\n\n"
    "def test_script():\n    assert subprocess.run(['acme'], capture_output=True).stdout == b'5\\n'\n\n\n"
    "def test_version():\n    assert acme_demo.__version__ == '1.2.3'\n",
}
REPAIR = """\
--- a/src/acme_demo/__init__.py
+++ b/src/acme_demo/__init__.py
@@ -4,4 +4,4 @@


 def add(a, b):
-    return a - b
+    return a + b
"""
INSTALLED = (*HATCHLING, *PYTEST, "maturin", "versioningit")


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """An index with the requirements of these projects, and a separate cache."""
    directory = tmp_path_factory.mktemp("index")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in write_index(directory, INSTALLED).items():
            patch.setenv(name, value)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield directory


pytestmark = pytest.mark.usefixtures("index")


def task_of(files=FILES, **spec):
    source = {"files": [{"path": path, "content": text} for path, text in files.items()]}
    defaults = {"entrypoint": "python -m pytest -q", "solution": REPAIR, "source": source}
    return msgspec.convert({"metadata": {"name": "acme"}, "spec": {**defaults, **spec}}, DebugTask)


@pytest.mark.parametrize(
    "entrypoint",
    ["pytest -q", *(pytest.param(each, marks=VARIATION) for each in ("python -m pytest -q", "true && pytest -q"))],
)
async def test_metadata_scripts_and_plugins_of_a_src_layout_work(kind, entrypoint):
    found = await check_task(task_of(entrypoint=entrypoint), Opening(sandbox=kind), repeats=1)
    assert found.problems == ()
    assert found.fail_to_pass == ("tests/test_acme.py::test_add", "tests/test_acme.py::test_script")
    assert found.pass_to_pass == ("tests/test_acme.py::test_version",)


def test_the_agents_tools_see_the_installed_project_and_the_repair_is_resolved(kind):
    with RepoEnv(task_of(), tools=["bash", "eval", "pdb", "rewrite", "submit"], sandbox=kind) as env:

        def output_of(call):
            return env.step(call)[0]["text"]

        env.reset()
        assert output_of("bash acme") == "-1"
        assert "1 passed" in output_of("eval")
        output_of("pdb b src/acme_demo/__init__.py:7")
        output_of("pdb c")
        assert "(2, 3)" in output_of("pdb p a, b")
        output_of("bash sed -i 's/a - b/a + b/' src/acme_demo/__init__.py")
        *_, info = env.step("submit")
        assert info["resolved"], info


@pytest.mark.thorough
async def test_an_installation_in_the_sandbox_is_written_beside_the_workspace(kind):
    """Setup commands install there too. Files that the agent writes there do not reach the verifier."""
    task = task_of(setupCommands=["pip install -q --no-deps --no-build-isolation -e ."])
    opened = await Opening(sandbox=kind).open(task)
    sandbox = await opened.provider.sandbox()
    try:
        await prepare(sandbox, task, opened.source)
        result = await sandbox.run("pip install --no-deps --no-build-isolation -e . && command -v acme")
        assert result.exit_status == 0, result.text
        assert result.text.splitlines()[-1] == f"{sandbox.overlay}/bin/acme"
        spoil = "echo raise SystemExit > $(python -c 'import sysconfig as s; print(s.get_path(\"purelib\"))')/six.py"
        assert (await sandbox.run(spoil)).exit_status == 0
        verifier = await opened.provider.verifier()
        try:
            assert verifier.workspace == sandbox.workspace or kind == "none"
            assert (await verifier.run("python -c 'import six'")).exit_status != 0
            assert "ModuleNotFoundError" in (await verifier.run("python -c 'import six'")).text
        finally:
            await verifier.stop()
    finally:
        await sandbox.stop()


@pytest.mark.thorough
async def test_files_of_a_build_are_not_in_the_patch(kind):
    files = {
        **FILES,
        "pyproject.toml": PYPROJECT + '[tool.hatch.build.hooks.custom]\npath = "build_hook.py"\n',
        "build_hook.py": "from hatchling.builders.hooks.plugin.interface import BuildHookInterface\n\n\n"
        "class Hook(BuildHookInterface):\n    def initialize(self, version, data):\n"
        "        open('src/acme_demo/_version.py', 'w').write('version = 1\\n')\n",
    }
    async with AsyncRepoEnv(task_of(files), tools=["bash", "submit"], sandbox=kind) as env:
        await env.reset()
        observation, *_ = await env.step(
            "bash cat src/acme_demo/_version.py; echo 1 > new.txt; echo 2 > src/acme_demo/_version.py"
        )
        assert observation["text"].startswith("version = 1")
        result = await env.finish()
        assert "new.txt" in result.patch
        assert "_version.py" not in result.patch


SPOIL = """\
import os, pathlib, sysconfig
purelib = pathlib.Path(sysconfig.get_path("purelib"))
(purelib / "zz_agent.pth").write_text("import os; os.environ['SPOILED'] = '1'\\n")
(purelib / "_pytest.py").write_text("raise SystemExit")
pytest = pathlib.Path(sysconfig.get_path("scripts"), "pytest")
pytest.write_text("#!/bin/sh\\nexit 0\\n")
(purelib / "acme_demo").mkdir(exist_ok=True)
"""


@pytest.mark.thorough
async def test_changes_of_the_environment_by_build_commands_do_not_affect_the_score(kind):
    """Build commands run code of the agent: links, scripts, hooks and modules of the environment are restored."""
    files = {
        **FILES,
        "tool.py": "",
        "tests/test_acme.py": "import os\n\n\ndef test_it():\n    assert 'SPOILED' in os.environ\n",
    }
    task = task_of(files, solution=None, buildCommands=["python tool.py"], entrypoint="pytest -q")
    async with AsyncRepoEnv(task, tools=["bash"], sandbox=kind) as env:
        await env.reset()
        await env.step(f"bash cat > tool.py <<'END'\n{SPOIL}\nEND")
        result = await env.finish()
        assert (result.resolved, result.score, result.max_score) == (False, 0, 1), result
        assert any("zz_agent.pth" in note for note in result.notes)
        assert not result.integrity.clean


@pytest.mark.thorough
async def test_build_commands_install_the_project_again(kind):
    task = task_of(buildCommands=["pip install --no-deps --no-build-isolation --no-index -e ."])
    async with AsyncRepoEnv(task, tools=["bash"], sandbox=kind) as env:
        await env.reset()
        await env.step("bash sed -i 's/a - b/a + b/' src/acme_demo/__init__.py")
        result = await env.finish()
        assert result.resolved, result
        assert result.integrity.clean


async def test_install_none_leaves_the_repository_as_it_is():
    found = await check_task(task_of(environment={"install": "none"}), Opening(), repeats=1)
    assert "acme_demo" in " ".join(found.problems) or found.fail_to_pass == ()


@pytest.mark.parametrize("declared", ["none", None])
async def test_setup_commands_install_where_the_repository_itself_is_not_installed(kind, declared):
    """Sandboxes do not share the installation, and packages that the agent installs do not reach the verifier."""
    files = {"libs/acme/" + path if path.startswith(("src", "pyp")) else path: text for path, text in FILES.items()}
    if declared:
        files["setup.py"] = "raise SystemExit\n"
    environment = {"requirements": ["hatchling", "editables"], **({"install": declared} if declared else {})}
    setup = ["pip install --no-deps --no-build-isolation --no-index -e libs/acme"]
    task = task_of(files, environment=environment, setupCommands=setup, solution=None)
    found = await check_task(task, Opening(sandbox=kind), repeats=1)
    assert found.fail_to_pass == ("tests/test_acme.py::test_add", "tests/test_acme.py::test_script"), found
    assert found.pass_to_pass == ("tests/test_acme.py::test_version",)
    async with AsyncRepoEnv(task, tools=["bash"], sandbox=kind) as env:
        await env.reset()
        await env.step("bash sed -i 's/a - b/a + b/' libs/acme/src/acme_demo/__init__.py")
        observation, *_ = await env.step("bash pip uninstall -y acme-demo && python -c 'import acme_demo'")
        assert "No module named 'acme_demo'" in observation["text"]
        result = await env.finish()
        assert result.resolved, result


@pytest.mark.parametrize(
    ("files", "environment", "message"),
    [
        pytest.param(
            FILES,
            {"extras": ["tset"]},
            r"environment.extras: acme-demo has no extra 'tset'; it has these: more, test",
            marks=VARIATION,
        ),
        (FILES, {"groups": ["dev"]}, r"environment.groups: pyproject.toml has no dependency group 'dev'"),
        ({"a.py": ""}, {"install": "editable"}, "environment.install: 'editable' needs a pyproject.toml"),
        ({"a.py": ""}, {"extras": ["test"]}, "environment.extras: the repository is not installed"),
        (
            FILES,
            {"python": "3.99"},
            "environment.python: Python 3.99 is not installed on this machine; install it",
        ),
    ],
)
async def test_a_declaration_that_does_not_fit_is_refused(files, environment, message):
    with pytest.raises(ManifestError, match=message):
        await Opening().open(task_of(files, environment=environment))


async def test_a_project_that_cannot_be_built_names_the_remedy():
    broken = {**FILES, "pyproject.toml": PYPROJECT.replace("src/acme", "x").replace("1.2.3", "one")}
    with pytest.raises(SetupFailed, match=r"(?s)could not be installed.*environment.install to 'none'.*one"):
        await Opening().open(task_of(broken))


@pytest.mark.thorough
async def test_extras_and_groups_are_installed():
    pyproject = PYPROJECT + '[dependency-groups]\nall = [{include-group = "some"}]\nsome = ["trove-classifiers"]\n'
    environment = {"extras": ["test"], "groups": ["all"]}
    opened = await Opening().open(task_of({**FILES, "pyproject.toml": pyproject}, environment=environment))
    sandbox = await opened.provider.sandbox()
    try:
        result = await sandbox.run("python -c 'import trove_classifiers, iniconfig, pluggy; print(1)'")
        assert result.text == "1\n"
    finally:
        await sandbox.stop()


@pytest.fixture
def checkout(tmp_path):
    """Write a git repository with the tag release-1.4 and a commit after it, and return its task."""

    def git(*arguments):
        names = {f"GIT_{role}_{part}": "t" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
        environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, **names}
        subprocess.run(["git", *arguments], cwd=tmp_path, env=environment, check=True, capture_output=True)

    def write(files, **spec):
        if shutil.which("git") is None:
            absent("git", "git is not installed")
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        git("init", "-q")
        git("add", "-A")
        git("commit", "-q", "-m", "one")
        git("tag", "release-1.4")
        git("commit", "-q", "--allow-empty", "-m", "two")
        spec = {"entrypoint": "python -m pytest -q", "source": {"localPath": str(tmp_path)}, **spec}
        return msgspec.convert({"metadata": {"name": "acme"}, "spec": spec}, DebugTask)

    return write


DYNAMIC = PYPROJECT.replace('version = "1.2.3"', 'dynamic = ["version"]')
BY_VERSIONINGIT = DYNAMIC.replace('"hatchling"]', '"hatchling", "versioningit"]') + (
    '[tool.hatch.version]\nsource = "versioningit"\n[tool.versioningit.tag2version]\nrmprefix = "release-"\n'
)
BY_GIT = DYNAMIC + '[tool.hatch.version]\nsource = "code"\npath = "version.py"\nexpression = "asked()"\n'
ASKS_GIT = """\
import subprocess


def asked():
    told = subprocess.run(["git", "describe", "--dirty"], capture_output=True, text=True, check=True).stdout
    return told.strip().removeprefix("release-")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("pyproject", [BY_VERSIONINGIT, BY_GIT], ids=["versioningit", "git"])
async def test_a_version_that_is_read_from_git_is_the_last_tag(checkout, kind, pyproject):
    files = {**FILES, "pyproject.toml": pyproject, "version.py": ASKS_GIT}
    files["tests/test_acme.py"] = (
        "import acme_demo\n\n\ndef test_version():\n    assert acme_demo.__version__ == '1.4'\n"
    )
    again = ["pip install --no-deps --no-build-isolation --no-index -e ."] if pyproject == BY_VERSIONINGIT else []
    found = await check_task(checkout(files, buildCommands=again), Opening(sandbox=kind), repeats=1)
    assert found.pass_to_pass == ("tests/test_acme.py::test_version",)


@pytest.mark.thorough
async def test_without_a_tag_the_version_is_zero(kind):
    files = {**FILES, "pyproject.toml": BY_GIT, "version.py": ASKS_GIT}
    files["tests/test_acme.py"] = (
        "import acme_demo\n\n\ndef test_version():\n    assert acme_demo.__version__ == '0.0.0'\n"
    )
    found = await check_task(task_of(files, solution=None), Opening(sandbox=kind), repeats=1)
    assert found.pass_to_pass == ("tests/test_acme.py::test_version",)


RUST = {
    "pyproject.toml": '[build-system]\nrequires = ["maturin"]\nbuild-backend = "maturin"\n'
    '[project]\nname = "sum"\ndynamic = ["version"]\n[tool.maturin]\nbindings = "bin"\n',
    "Cargo.toml": '[package]\nname = "sum"\nversion = "0.1.0"\nedition = "2018"\n[dependencies]\ntiny = "1"\n',
    "src/main.rs": 'fn main() { println!("{}", tiny::add(2, 3)); }\n',
    "tests/test_sum.py": "import subprocess\n\n\ndef test_sum():\n"
    "    assert subprocess.run(['sum'], capture_output=True).stdout == b'5\\n'\n",
}
CHECKSUM = "5" * 64
LOCK = f"""\
version = 3

[[package]]
name = "sum"
version = "0.1.0"
dependencies = ["tiny"]

[[package]]
name = "tiny"
version = "1.0.0"
source = "registry+https://github.com/rust-lang/crates.io-index"
checksum = "{CHECKSUM}"
"""


@pytest.fixture
def crates(tmp_path, monkeypatch):
    """A mirror of crates.io, which is set in the user's configuration of cargo."""
    if shutil.which("cargo") is None or shutil.which("rustc") is None:
        absent("cargo", "cargo and rustc are not installed")
    tiny = tmp_path / "mirror" / "tiny"
    (tiny / "src").mkdir(parents=True)
    (tiny / "Cargo.toml").write_text('[package]\nname = "tiny"\nversion = "1.0.0"\nedition = "2018"\n')
    (tiny / "src" / "lib.rs").write_text("pub fn add(a: i64, b: i64) -> i64 { a + b }\n")
    (tiny / ".cargo-checksum.json").write_text(f'{{"files": {{}}, "package": "{CHECKSUM}"}}')
    (tmp_path / "config.toml").write_text(
        f"[source.crates-io]\nreplace-with = 'mirror'\n[source.mirror]\ndirectory = '{tmp_path}/mirror'\n"
    )
    monkeypatch.setenv("CARGO_HOME", str(tmp_path))


@pytest.mark.thorough
@pytest.mark.usefixtures("crates")
@pytest.mark.parametrize("locked", [False, True])
async def test_a_project_with_rust_is_built_offline_with_its_crates(kind, locked):
    files = {**RUST, "Cargo.lock": LOCK} if locked else RUST
    found = await check_task(task_of(files, solution=None), Opening(sandbox=kind), repeats=1)
    assert found.pass_to_pass == ("tests/test_sum.py::test_sum",)


@pytest.mark.usefixtures("crates")
async def test_no_program_that_the_repository_names_runs_outside_the_sandbox(tmp_path, isolated):
    ran = tmp_path / "ran"
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\ntouch {ran}\n")
    compiler.chmod(0o755)
    files = {**RUST, ".cargo/config.toml": f"[build]\nrustc = '{compiler}'\n"}
    with pytest.raises(SetupFailed, match="could not execute process"):
        await Opening(sandbox=isolated).open(task_of(files, solution=None))
    assert not ran.exists()


@pytest.mark.attack("parsers")
async def test_a_pyproject_that_takes_a_parser_down_is_a_failure_of_the_setup():
    files = {"pyproject.toml": "x = " + "[" * 3000, "test_a.py": "def test(): pass\n"}
    with pytest.raises(SetupFailed, match=r"pyproject\.toml cannot be read"):
        await Opening().open(task_of(files, solution=None))


@pytest.mark.thorough
@pytest.mark.attack("parsers")
@pytest.mark.usefixtures("crates")
@pytest.mark.parametrize("bomb", ["x = " + "[" * 3000, "a" + ".a" * 100_000 + " = 1\n"], ids=["brackets", "key"])
async def test_manifests_of_rust_that_take_a_parser_down_are_left_out(kind, bomb):
    files = {**RUST, "Cargo.lock": LOCK, "vendor/Cargo.toml": bomb, "vendor/Cargo.lock": bomb}
    found = await check_task(task_of(files, solution=None), Opening(sandbox=kind), repeats=1)
    assert found.pass_to_pass == ("tests/test_sum.py::test_sum",)


async def test_a_project_with_rust_without_a_toolchain_names_the_remedy(monkeypatch, tmp_path):
    for program in ("git", "bwrap"):
        if (found := shutil.which(program)) is not None:
            (tmp_path / program).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupFailed, match="install rustc and cargo"):
        await Opening().open(task_of({**RUST, "a.py": ""}, solution=None))
