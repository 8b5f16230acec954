"""Program of ``ask``: finds the constructs in the source of a Python module that a repair does not need.

Each construct is ``[kind, text, line]``. ``KINDS`` in ``integrity.py`` has the reason of each kind. Nothing is
executed. Constructs are found in the source text, so code that computes names in an unexpected way can hide them.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

_MOST = 2000
_TEXT_CHARACTERS = 120

_FRAMEWORKS = frozenset(
    {
        *("pytest", "_pytest", "pluggy", "unittest", "unittest2", "nose", "nose2", "mock", "hypothesis", "testtools"),
        *("conftest", "doctest", "py"),
    }
)
_NAMED_BY_TEXT = _FRAMEWORKS - {"mock", "nose", "py", "hypothesis"}
_MACHINERY = frozenset(
    {
        *("gc", "ctypes", "_ctypes", "cffi", "builtins", "atexit", "faulthandler", "posix", "mmap", "imp", "site"),
        *("bdb", "pdb", "trace", "runpy", "code", "codeop", "objgraph", "pympler", "_testcapi", "_testinternalcapi"),
        *("sitecustomize", "usercustomize", "marshal", "dill", "_thread"),
    }
)
_FRAMES = frozenset(
    {
        *("_getframe", "_getframemodulename", "_current_frames", "_current_exceptions", "currentframe", "f_back"),
        *("getouterframes", "getinnerframes", "f_locals", "f_globals", "f_builtins", "f_trace", "tb_frame", "gi_frame"),
        *("cr_frame", "ag_frame", "walk_stack", "extract_stack", "walk_tb", "get_stack", "findCaller", "f_code"),
        *("getgeneratorlocals", "getcoroutinelocals", "get_objects", "get_referrers", "get_referents"),
        *("__subclasses__", "__globals__", "__closure__", "cell_contents", "__self__"),
    }
)
_TRACES = frozenset(
    {"settrace", "setprofile", "settrace_all_threads", "setprofile_all_threads", "addaudithook", "set_wakeup_fd"}
)
_IMPORTS = frozenset({"meta_path", "path_hooks", "path_importer_cache", "__builtins__", "__loader__", "__import__"})
# Attributes of pytest and unittest for the state and the end of a test.
_KEPT = frozenset(
    {
        *("callspec", "funcargs", "cached_result", "longrepr", "_fixtureinfo", "name2fixturedefs", "pluginmanager"),
        *("wasSuccessful", "testsRun", "_testMethodName", "SkipTest", "_ShouldStop"),
    }
)
_ATTRIBUTES = {
    **dict.fromkeys(_NAMED_BY_TEXT, "tests"),
    **dict.fromkeys(_KEPT, "tests"),
    **dict.fromkeys(_FRAMES, "frames"),
    **dict.fromkeys(_TRACES, "traces"),
    **dict.fromkeys(_IMPORTS, "machinery"),
}
# The last two parts of dotted names.
_DOTTED = {
    **dict.fromkeys(("sys.modules", "sys.monitoring", "sys.setswitchinterval"), "machinery"),
    **dict.fromkeys(("inspect.stack", "inspect.trace", "inspect.getmembers", "linecache.getline"), "frames"),
    **dict.fromkeys(("inspect.getsource", "inspect.getsourcelines", "linecache.getlines"), "frames"),
    **dict.fromkeys(("os._exit", "os.abort", "os.kill", "os.killpg", "os.execv", "os.execve", "os.execvp"), "exits"),
    **dict.fromkeys(("os.execl", "os.execle", "os.execlp", "os.execlpe", "os.execvpe", "posix._exit"), "exits"),
    **dict.fromkeys(("signal.signal", "signal.setitimer", "signal.alarm", "signal.pthread_kill"), "exits"),
    **dict.fromkeys(("signal.raise_signal", "resource.setrlimit", "resource.prlimit", "os.dup2"), "exits"),
    **dict.fromkeys(("sys.exit", "os.EX_OK"), "status"),
    **dict.fromkeys(("types.CodeType", "types.FunctionType", "types.new_class", "timeit.Timer"), "text"),
    **dict.fromkeys(("timeit.timeit", "timeit.repeat", "pickle.loads", "pickle.load", "pickle.Unpickler"), "text"),
    **dict.fromkeys(("importlib.reload", "util.spec_from_file_location", "util.spec_from_loader"), "text"),
    **dict.fromkeys(("util.module_from_spec", "shelve.open", "joblib.load"), "text"),
}
_MEMBERS = {name.rpartition(".")[2]: kind for name, kind in _DOTTED.items() if kind != "status"}
_NAME_READERS = frozenset(
    {"attrgetter", "methodcaller", "getattr_static", "__getattribute__", "resolve_name", "locate"}
)
_WRITES = frozenset({"write_text", "write_bytes", "open"})
_DEEPEST = 3
_RAN = frozenset({"exec", "eval", "compile", "__import__"})
_PATH_CHANGES = frozenset({"insert", "append", "extend", "remove", "clear", "pop", "reverse"})
_BEHIND = frozenset({"__code__", "__defaults__", "__kwdefaults__", "__bases__", "__class__"})
_EQUALS = frozenset({"__eq__", "__ne__"})
_COMPARES = frozenset(
    {
        *("__lt__", "__le__", "__gt__", "__ge__", "__contains__", "__sub__", "__rsub__", "__truediv__", "__mod__"),
        *("__bool__", "__len__", "__abs__", "__float__", "__int__", "__index__", "__round__", "__array__"),
    }
)
_POSES = frozenset({"__instancecheck__", "__subclasscheck__", "__getattribute__", "__class__", "__prepare__"})
_BUILTIN_TYPES = frozenset(
    {"object", "int", "float", "str", "bytes", "tuple", "list", "dict", "set", "frozenset", "type", "super", "complex"}
)
_PLACES = ("sitecustomize", "usercustomize", "site-packages", "PYTHONPATH", "PYTHONSTARTUP")
_TEST_FILE = re.compile(r"(?:^|/)(?:tests?/|test_\w+\.py$|\w+_test\.py$|conftest\.py$)")


def answer(source: str) -> list[list[Any]]:
    """Return the constructs. Raises the exceptions of ``ast.parse`` if the source is not Python."""
    tree = ast.parse(source.encode("utf-8", "surrogateescape"))
    return [[kind, text[:_TEXT_CHARACTERS], line] for kind, text, line in list(Finder(tree).found())[:_MOST]]


class Finder:
    """Finds the constructs of one module."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._nodes = list(ast.walk(tree))
        self._passed = {id(node) for node in _unchecked_nodes(self._nodes)}
        self._bound: dict[str, str] = {}
        self._own: set[str] = set()
        self._defined = {node.name for node in self._nodes if isinstance(node, _DEFINITIONS)}
        self._functions = [node for node in self._nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        self._defined |= {node.id for node in self._nodes if isinstance(node, ast.Name) and _is_store(node)}
        self._bind()

    def found(self, depth: int = 0) -> Iterator[tuple[str, str, int]]:
        """Yield each construct, in any order.

        Includes the constructs of source in a string, because code may write it to a file and load it.
        """
        for node in self._nodes:
            if id(node) not in self._passed:
                for kind, text in self._of(node):
                    yield kind, text, getattr(node, "lineno", 0)
                if depth < _DEEPEST and (tree := _source_in(node)) is not None:
                    for kind, text, _ in Finder(tree).found(depth + 1):
                        yield kind, text, getattr(node, "lineno", 0)

    # Names

    def _bind(self) -> None:
        """Bind the names that refer to an import, by an import statement or a plain assignment from such a name."""
        for node in self._nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    self._bound[name] = alias.name if alias.asname else name
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    name = alias.asname or alias.name
                    self._bound[name] = f"{node.module or ''}.{alias.name}"
                    if node.level:
                        self._own.add(name)
        for _ in range(3):
            for node in self._nodes:
                if isinstance(node, ast.Assign) and (path := self._path(node.value)) is not None:
                    for target in node.targets:
                        if isinstance(target, ast.Name) and target.id not in self._bound:
                            self._bound[target.id] = path

    def _path(self, node: ast.AST) -> str | None:
        """The dotted name of an imported object that the node refers to; None for anything else."""
        names: list[str] = []
        while (member := _member(node)) is not None:
            name, node = member
            names.append(name)
        if not isinstance(node, ast.Name) or node.id not in self._bound:
            return None
        return ".".join([self._bound[node.id], *reversed(names)])

    def _is_foreign(self, node: ast.AST) -> bool:
        """Whether a name refers to something that another package defines."""
        root, names = node, []
        while isinstance(root, ast.Attribute):
            names.append(root.attr)
            root = root.value
        if not isinstance(root, ast.Name) or root.id not in self._bound:
            return False
        # A relative import of a standard library module's name is still foreign.
        return root.id not in self._own or not sys.stdlib_module_names.isdisjoint([root.id, *names])

    # Constructs

    def _of(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _of_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            yield from _of_import(node)
        elif isinstance(node, ast.Attribute):
            yield from self._of_attribute(node)
        elif isinstance(node, ast.Name):
            yield from self._of_name(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _of_text(node.value)
        elif isinstance(node, ast.Call):
            yield from self._of_call(node)
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete | ast.For):
            for target in _targets(node):
                yield from self._of_target(target)
        else:
            yield from self._of_other_node(node)

    def _of_other_node(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.ClassDef):
            yield from self._of_class(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("pytest_"):
            yield "tests", node.name
        elif isinstance(node, ast.MatchClass):
            for name in node.kwd_attrs:
                kind = _ATTRIBUTES.get(name) or _MEMBERS.get(name)
                if kind is not None:
                    yield kind, name
        elif isinstance(node, ast.BinOp) and (text := _folded(node)) is not None:
            yield from _of_text(text)

    def _of_attribute(self, node: ast.Attribute) -> Iterator[tuple[str, str]]:
        kind = _ATTRIBUTES.get(node.attr)
        if kind is not None and not (_is_self(node.value) and not node.attr.startswith("__")):
            yield kind, node.attr
        yield from _of_path(self._path(node) or _plain_path(node))
        if node.attr == "exit":
            yield "status", "exit"
        if node.attr == "__dict__" and (self._is_foreign(node.value) or _is_type(node.value)):
            yield "assigned", f"{ast.unparse(node)}"

    def _of_name(self, node: ast.Name) -> Iterator[tuple[str, str]]:
        name = node.id
        if name in _RAN and name not in self._defined and name not in self._bound:
            yield "text", name
        elif name in ("exit", "quit", "SystemExit") and name not in self._defined and name not in self._bound:
            yield "status", name
        elif name in ("__builtins__", "__loader__"):
            yield "machinery", name
        elif isinstance(node.ctx, ast.Load):
            yield from _of_path(self._bound.get(name))

    def _of_call(self, node: ast.Call) -> Iterator[tuple[str, str]]:
        name = (self._path(node.func) or _plain_path(node.func) or "").rpartition(".")[2]
        arguments = node.args
        computed = [argument for argument in arguments if not isinstance(argument, ast.Constant)]
        if name == "dir" and arguments and "dir" not in self._defined:
            yield "computed", ast.unparse(node)
        elif name in _NAME_READERS:
            for argument in arguments:
                member = re.split("[.:]", _folded(argument) or "")[-1]
                if member in _MEMBERS:
                    yield _MEMBERS[member], member
        elif name in _WRITES and _writes_python(node):
            yield "text", ast.unparse(node)
        if name in ("getattr", "setattr", "delattr") and len(arguments) > 1:
            yield from _of_path(self._path(node))
            judged = self._is_foreign(arguments[0]) or _is_type(arguments[0])
            if judged and (name != "getattr" or arguments[1] in computed):
                yield "assigned" if name != "getattr" else "computed", ast.unparse(node)
        elif (name == "vars" and arguments and self._is_foreign(arguments[0])) or (
            name in ("attrgetter", "methodcaller", "import_module", "find_spec") and computed
        ):
            yield "computed", ast.unparse(node)
        elif name == "type" and len(arguments) == 3:
            yield "computed", "type() of three arguments"
        elif (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in _PATH_CHANGES
            and (self._path(node.func.value) or "").endswith("sys.path")
        ):
            yield "machinery", "sys.path"

    def _of_target(self, target: ast.AST) -> Iterator[tuple[str, str]]:
        if isinstance(target, ast.Attribute):
            if target.attr in _BEHIND or re.match("assert[A-Z]", target.attr):
                yield "assigned", target.attr
            elif self._is_foreign(target.value) or _is_type(target.value):
                yield "assigned", ast.unparse(target)
        elif isinstance(target, ast.Subscript):
            holder = target.value
            call = holder.func if isinstance(holder, ast.Call) else None
            if isinstance(call, ast.Name) and call.id in ("globals", "locals", "vars"):
                yield "assigned", ast.unparse(target)
            elif (self._path(holder) or "").endswith("sys.path"):
                yield "machinery", "sys.path"
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                yield from self._of_target(element)

    def _of_class(self, node: ast.ClassDef) -> Iterator[tuple[str, str]]:
        for item in node.body:
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                name = item.name
                if (
                    name in _POSES
                    or (name in _EQUALS and not (compares_fields(item) and self._callees_read_both(item)))
                    or (name in _COMPARES and not _uses_arguments(item))
                ):
                    yield "equal", f"{name} of {node.name}: {ast.unparse(item.body[-1])}"
            elif isinstance(item, ast.Assign | ast.AnnAssign):
                names = {target.id for target in _targets(item) if isinstance(target, ast.Name)}
                for name in sorted(names & (_EQUALS | _COMPARES | _POSES)):
                    if not _is_known_method(item.value, self._defined):
                        yield "equal", f"{name} of {node.name}"

    def _callees_read_both(self, function: ast.AST) -> bool:
        """Whether each function of this module that a comparison calls reads both of its objects."""
        called = {
            (_plain_path(node.func) or "").rpartition(".")[2]
            for node in ast.walk(function)
            if isinstance(node, ast.Call) and len(node.args) + len(node.keywords) > 0
        }
        asked = [each for each in self._functions if each.name in called - _EQUALS]
        return all(_uses_arguments(each) for each in asked if len(each.args.args) > 1)


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _member(node: ast.AST) -> tuple[str, ast.AST] | None:
    """The name of a member that is read, by a dot or ``getattr``, and the node of its object."""
    if isinstance(node, ast.Attribute):
        return node.attr, node.value
    if isinstance(node, ast.Call) and _plain_path(node.func) == "getattr" and len(node.args) > 1:
        name = _folded(node.args[1])
        return (name, node.args[0]) if name is not None else None
    return None


def _folded(node: ast.AST) -> str | None:
    """The value of a string constant or of a sum of them; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _folded(node.left), _folded(node.right)
        return None if left is None or right is None else left + right
    return None


def _source_in(node: ast.AST) -> ast.Module | None:
    """Parse a string constant if it is source that imports or defines something."""
    text = node.value if isinstance(node, ast.Constant) else None
    if not isinstance(text, str) or not any(word in text for word in ("import ", "def ", "class ")):
        return None
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _writes_python(call: ast.Call) -> bool:
    """Whether a call writes a file whose name ends in ``.py``."""
    texts = [text for each in ast.walk(call) if (text := _folded(each)) is not None]
    writes = (_plain_path(call.func) or "write").rpartition(".")[2] != "open" or any(
        len(text) < 4 and not {*"wax+"}.isdisjoint(text) for text in texts
    )
    return writes and any(text.endswith(".py") for text in texts)


def _of_path(path: str | None) -> Iterator[tuple[str, str]]:
    end = ".".join(name.lstrip("_") if not name.startswith("_exit") else name for name in (path or "").split(".")[-2:])
    if end in _DOTTED:
        yield _DOTTED[end], end


def _is_store(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _unchecked_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Nodes that are not checked: docstrings, lists of names, and code only for type checkers."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            for child in node.body:
                yield from ast.walk(child)
        elif isinstance(node, ast.Assign) and any(_plain_path(target) in _LISTS for target in node.targets):
            yield from ast.walk(node.value)


_LISTS = ("__all__", "__slots__", "__match_args__", "_fields")


def _is_type_checking(test: ast.AST) -> bool:
    return (_plain_path(test) or "").rpartition(".")[2] == "TYPE_CHECKING"


def _plain_path(node: ast.AST) -> str | None:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else None


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _is_type(node: ast.AST) -> bool:
    """Whether the node is the class of an object other than ``self``."""
    if isinstance(node, ast.Attribute) and node.attr == "__class__":
        return not _is_self(node.value)
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type"
    return called and len(node.args) == 1 and not _is_self(node.args[0])  # type: ignore[attr-defined]


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign | ast.Delete):
        return list(node.targets)
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For) else []


def _of_import(node: ast.ImportFrom) -> Iterator[tuple[str, str]]:
    module = node.module or ""
    if not node.level:
        yield from _of_module(module)
    elif module and _is_test_module(module):
        yield "tests", "." * node.level + module
    for alias in node.names:
        if alias.name in _ATTRIBUTES and module.partition(".")[0] not in _FRAMEWORKS:
            yield _ATTRIBUTES[alias.name], f"{module}.{alias.name}"
        elif _is_test_module(alias.name) and node.level:
            yield "tests", alias.name


def _of_module(name: str) -> Iterator[tuple[str, str]]:
    first = name.partition(".")[0]
    if first in _FRAMEWORKS or _is_test_module(name):
        yield "tests", name
    elif first in _MACHINERY:
        yield "machinery", name


def _is_test_module(name: str) -> bool:
    return any(part in ("tests", "conftest") or part.startswith("test_") for part in name.split("."))


def _of_text(text: str) -> Iterator[tuple[str, str]]:
    if len(text) > 1000:
        return
    if text in _ATTRIBUTES:
        yield _ATTRIBUTES[text], text
    elif text in _EQUALS or text in _POSES or text in _BEHIND:
        yield "equal", repr(text)
    elif (
        (text.partition(".")[0] in _NAMED_BY_TEXT and text.replace(".", "").isidentifier())
        or "PYTEST_" in text
        or (_TEST_FILE.search(text) is not None and " " not in text)
    ):
        yield "tests", repr(text)
    elif text.startswith("/proc/") or text.endswith(".pth") or any(place in text for place in _PLACES):
        yield "machinery", repr(text)


# Comparisons


def compares_fields(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a comparison method compares attributes of both objects, and cannot always return True."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    if len(arguments) != 2 or _has_side_effects(function):
        return False
    mine, theirs = (argument.arg for argument in arguments)
    names = _Sides(function, mine, theirs)
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
    if not returned:
        return _only_raises(function)
    looped = any(isinstance(node, ast.Compare) and names.compares(node) for node in ast.walk(function))
    return all(names.depends_on_both(value, looped=looped) for value in returned)


def _only_raises(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return isinstance(function.body[-1], ast.Raise) or all(
        isinstance(node, ast.Expr | ast.Pass) for node in function.body
    )


def _has_side_effects(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the method changes something or defines a nested function."""
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal) or (isinstance(node, _DEFINITIONS) and node is not function):
            return True
        if any(isinstance(target, ast.Attribute | ast.Subscript) for target in _targets(node)):
            return True
    return False


class _Sides:
    """The names in a comparison method that depend on the first or on the second object."""

    def __init__(self, function: ast.AST, mine: str, theirs: str) -> None:
        self._mine, self._theirs = {mine, "super"}, {theirs}
        for _ in range(2):
            for node in ast.walk(function):
                value = getattr(node, "iter", None) or getattr(node, "value", None)
                if isinstance(node, ast.Assign | ast.AnnAssign | ast.For | ast.comprehension) and value is not None:
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    bound = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
                    for side in (self._mine, self._theirs):
                        if self._names(value) & side:
                            side |= bound

    @staticmethod
    def _names(node: ast.AST) -> set[str]:
        return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}

    def compares(self, node: ast.AST) -> bool:
        """Whether the expression depends on both objects."""
        names = self._names(node)
        return bool(names & self._mine) and bool(names & self._theirs)

    def depends_on_both(self, node: ast.AST, *, looped: bool) -> bool:
        """Whether a returned value depends on both objects, or means that they differ."""
        if isinstance(node, ast.Constant):
            return node.value is False or (node.value is True and looped)
        if isinstance(node, ast.Name) and node.id == "NotImplemented":
            return True
        if isinstance(node, ast.BoolOp):
            judged = [self.depends_on_both(value, looped=False) for value in node.values]
            return all(judged) if isinstance(node.op, ast.Or) else any(judged)
        if isinstance(node, ast.IfExp):
            return self.depends_on_both(node.body, looped=looped) and self.depends_on_both(node.orelse, looped=looped)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.compares(node.operand)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            return False
        return self.compares(node)


def _uses_arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether every returned value depends on an argument. With two arguments, the second must be used."""
    arguments = [argument.arg for argument in [*function.args.posonlyargs, *function.args.args]]
    judged = set(arguments[:2])
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
    names = {each.id for each in ast.walk(function) if isinstance(each, ast.Name)}
    if not returned:
        return True
    constant = all(isinstance(value, ast.Constant) and value.value not in (False, None) for value in returned)
    used = all(name in names for name in judged) if len(arguments) > 1 else bool(names & judged)
    return (used or _only_raises(function)) and not constant


def _is_known_method(value: ast.AST | None, defined: set[str]) -> bool:
    """Whether a method is bound to one of a builtin type, to None, or to a function of this module."""
    if value is None or (isinstance(value, ast.Constant) and value.value is None):
        return True
    path = _plain_path(value) or ""
    root = path.partition(".")[0]
    return ("." in path and root in _BUILTIN_TYPES) or ("." in path and root in defined)
