"""Templates rendered once for many pods, with blanks in place of the values that differ from one to the next.

A blank may be written out and nothing else: whatever else a template does with one raises ``Looked``, and its pods are
rendered one by one. So a form that is filled in is what rendering would give.
"""

import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any, NoReturn

import msgspec
from jinja2 import Environment

# Printable ASCII, which JSON and YAML write alike, without what ``literal`` would change.
_FILLABLE = re.compile(r"[ !#%-\[\]-~]{0,1000}")
_FORMS = 256


class Looked(Exception):
    """A template depends on a value that was left blank."""


class Blank:
    """A value to be filled in. It can be written out alone, or within a list or a mapping, as a text of its own."""

    __slots__ = ("mark",)

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def _look(self, *_arguments: Any) -> NoReturn:
        raise Looked

    __str__ = __repr__ = __format__ = __bytes__ = _look
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __hash__ = _look
    __len__ = __iter__ = __contains__ = __getitem__ = __reversed__ = __length_hint__ = _look
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _look
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _look
    __neg__ = __pos__ = __abs__ = __int__ = __float__ = __complex__ = __index__ = __round__ = __trunc__ = _look
    __call__ = __html__ = _look

    def __getattr__(self, _name: str) -> NoReturn:
        raise Looked


def blind(environment: Environment) -> None:
    """Let no test of the environment look at a blank: several ask for a value's type alone."""
    environment.tests = {name: _blind(test) for name, test in environment.tests.items()}


def _blind(test: Any) -> Callable[..., Any]:
    def blinded(*arguments: Any, **named: Any) -> Any:
        if any(isinstance(each, Blank) for each in (*arguments, *named.values())):
            raise Looked
        return test(*arguments, **named)

    # By it Jinja knows what else to pass.
    if hasattr(test, "jinja_pass_arg"):
        blinded.jinja_pass_arg = test.jinja_pass_arg  # type: ignore[attr-defined]
    return blinded


class Forms:
    """Forms by their template and the values that are not left blank."""

    def __init__(self) -> None:
        self._forms: OrderedDict[Hashable, dict[str, Any] | None] = OrderedDict()
        # No template and no value has it in its text.
        self._mark = f"dgym-blank-{secrets.token_hex(8)}-"
        self._whole = re.compile(rf"{self._mark}\d+-")

    def fill(
        self,
        template: Hashable,
        variables: Mapping[str, Any],
        blanks: Collection[tuple[str, ...]],
        render: Callable[[dict[str, Any]], tuple[str, dict[str, Any]]],
    ) -> dict[str, Any] | None:
        """What ``render`` would give for the variables; None: it is to be rendered.

        Args:
            template: The template in its present state.
            variables: Mappings of names within mappings of names.
            blanks: Paths of texts that differ from pod to pod.
            render: The text of the template and the tree in it.
        """
        given = {name: dict(value) for name, value in variables.items()}
        values: dict[str, str] = {}
        for number, path in enumerate(blanks):
            holder = given[path[0]]
            for name in path[1:-1]:
                holder[name] = holder = dict(holder[name])
            value, blank = holder[path[-1]], Blank(f"{self._mark}{number}-")
            if not isinstance(value, str) or not _FILLABLE.fullmatch(value):
                return None
            holder[path[-1]], values[blank.mark] = blank, value
        form = self._form((template, msgspec.json.encode(given, enc_hook=_mark)), given, render)
        return _filled(form, values) if form is not None else None

    def _form(
        self,
        key: Hashable,
        given: dict[str, Any],
        render: Callable[[dict[str, Any]], tuple[str, dict[str, Any]]],
    ) -> dict[str, Any] | None:
        if key not in self._forms:
            self._forms[key] = self._rendered(given, render)
            if len(self._forms) > _FORMS:
                self._forms.popitem(last=False)
        self._forms.move_to_end(key)
        return self._forms[key]

    def _rendered(
        self, given: dict[str, Any], render: Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]
    ) -> dict[str, Any] | None:
        """The form; None: the template looks at blanks, or is wrong, which rendering each pod tells."""
        try:
            text, tree = render(given)
        except Exception:
            return None
        marks = [value for value in _texts(tree) if self._mark in value]
        # A mark in a comment, a key or a longer text is no blank to fill in.
        return tree if len(marks) == text.count(self._mark) and all(map(self._whole.fullmatch, marks)) else None


def _mark(value: Any) -> Any:
    if isinstance(value, Blank):
        return value.mark
    raise TypeError(f"{type(value).__name__} is not a value of JSON")


def _texts(value: Any) -> Iterator[str]:
    """Every text in the tree that is no key."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _filled(tree: Any, values: Mapping[str, str]) -> Any:
    if isinstance(tree, str):
        return values.get(tree, tree)
    if isinstance(tree, list):
        return [_filled(item, values) for item in tree]
    return {key: _filled(item, values) for key, item in tree.items()} if isinstance(tree, dict) else tree
