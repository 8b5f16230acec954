import sys

import pytest

from dgym.errors import ManifestError, PluginError
from dgym.tools import Tool, available_tools, load_tool, load_tools, read_options
from dgym.tools.pdb import Pdb
from dgym.tools.view import View


class Spec:
    def __init__(self, name, **options):
        self.name = name
        self.options = options


def test_every_installed_tool_loads_under_its_own_name():
    names = available_tools()
    assert {"bash", "eval", "grep", "listdir", "pdb", "rewrite", "submit", "view"} <= set(names)
    assert [tool.name for tool in load_tools(names)] == list(names)


def test_classes_and_instances_are_taken_as_they_are():
    view = View()
    pdb, same = load_tools([Pdb, view])
    assert isinstance(pdb, Pdb)
    assert same is view


def test_a_dotted_path_is_found_in_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "tools_of_mine.py").write_text(
        'from dgym.tools import Tool\nclass Hello(Tool):\n    """Greet."""\n'
        "    async def use(self, context, name: str) -> str:\n        return name\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (hello,) = load_tools(["tools_of_mine:Hello"])
    assert hello.name == "hello"
    del sys.modules["tools_of_mine"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("veiw", r"Unknown tool `veiw`. Did you mean `view`\?"),
        ("no_such_module:Tool", "`no_such_module:Tool` cannot be loaded: ModuleNotFoundError"),
        ("dgym.tools.view:Nothing", "cannot be loaded: AttributeError"),
        ("dgym.tools._base:ToolResult", "not a subclass of dgym.Tool"),
        ("dgym.tools._base:Tool", "cannot be used: TypeError"),
    ],
)
def test_a_tool_that_cannot_be_used_is_named(name, expected):
    with pytest.raises(PluginError, match=expected):
        load_tool(name)


def test_a_tool_that_fails_at_import_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken_tools.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match="`broken_tools:X` cannot be loaded: RuntimeError: no licence"):
        load_tool("broken_tools:X")


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(PluginError, match="Two tools are named `view`"):
        load_tools(["view", View()])


def test_options_are_keyword_arguments_in_camel_case():
    assert isinstance(load_tools([Spec("pdb", persistentBreakpoints=False, autoList=False)])[0], Pdb)


def test_options_may_be_in_snake_case_too():
    assert isinstance(load_tools([Spec("pdb", auto_list=False)])[0], Pdb)


@pytest.mark.parametrize("name", available_tools())
def test_every_option_has_a_description(name):
    described = read_options(type(load_tool(name))).json_schema["properties"]
    assert [option for option, schema in described.items() if not schema.get("description")] == []


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Spec("pdb", autoLits=True), "unknown option `autoLits`. Did you mean `autoList`"),
        (Spec("pdb", autoList="perhaps"), 'must be true or false, not "perhaps"'),
        (Spec("listdir", depth=1), "takes no options, but `depth` is given"),
    ],
)
def test_wrong_options_are_a_mistake_of_the_manifest(spec, expected):
    with pytest.raises(ManifestError, match="(?s)" + expected):
        load_tools([spec])


def test_a_constructor_that_fails_is_named():
    class Moody(Tool):
        """Fail."""

        def __init__(self) -> None:
            raise ValueError("not today")

        async def use(self, context) -> str:
            return ""

    with pytest.raises(PluginError, match="`Moody` cannot be used: ValueError: not today"):
        load_tools([Moody])
