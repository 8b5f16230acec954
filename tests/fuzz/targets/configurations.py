"""Target for an agent's configuration files, commands and sources: they are checked fast, without exceptions."""

from hypothesis import strategies as st

from dgym.session.scoring._integrity import reads_history, review
from dgym.session.scoring._protection import protect, select_changes
from dgym.untrusted import TEXT_LIMIT, parse_ini
from dgym.workspace.patches import FileVersion
from tests.fuzz.engine import Target
from tests.fuzz.mutation import mutated

_TOML = b'[project]\nname = "x"\n[tool.pytest.ini_options]\naddopts = "-q"\n[[tool.x]]\na.b.c = 2020-01-01T00:00:00Z\n'
_INI = b"[tool:pytest]\naddopts = -q\n  --strict\n[flake8]\nmax-line-length = %(x)s\n"
_PYTHON = (
    b"import sys\n\n\nclass A:\n    def __eq__(self, other):\n        return sys._getframe(1).f_back is not None\n"
)
_COMMAND = b"cd src && git -C . -c a.b=c log --oneline | head; git status > .git/x"
_LARGE = (
    *(b"x = " + b"9" * 5000, b"x = " + b"[" * 3000, b"a." * 100_000 + b"a = 1\n", b"[" + b"a." * 100_000 + b"a]\n"),
    *(b"git " + b"-c " * 60, b"git " + b"-c " * 100_000, b"\n" * 1_000_000, b"(" * 5000, b"-" * 100_000 + b"1"),
    *(b"x" * (TEXT_LIMIT + 1), b"if x:\n " * 3000, b"lambda: " * 5000, b"f'{" * 200, b"\0", b"\xff\xfe"),
)
_TEXTS = mutated([_TOML, _INI, _PYTHON, _COMMAND], _LARGE) | st.sampled_from(_LARGE)
_PATHS = st.sampled_from(("pyproject.toml", "src/pyproject.toml", "src/a.py", "setup.cfg", ".gitignore", "a.pth"))
_INPUTS = st.tuples(_TEXTS, _TEXTS, _PATHS)


def check(value: tuple[bytes, bytes, str]) -> None:
    """Check a text as a command and as a change of a file."""
    before, after, path = value
    reads_history(after.decode("utf-8", "surrogateescape"))
    change = FileVersion(after)
    if path.endswith(".py"):
        review({path: (FileVersion(before), change)}, by_status=True)
    elif path == "setup.cfg":
        tables = parse_ini(after)
        assert tables is None or isinstance(tables, dict)
    else:
        allowed, refused = select_changes({path: change}, protect([path], []), before)
        assert {*allowed, *refused} == {path}


TARGET = Target("configurations", _INPUTS, check)
