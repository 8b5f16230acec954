"""The value of a formula."""

import operator

from formula.parser import Parser

SIGNS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "^": operator.pow,
}
FUNCTIONS = {"min": min, "max": max, "sum": lambda *values: sum(values)}


def evaluate(text, **names):
    """What a formula is worth; names are numbers or formulas themselves."""
    return _value(Parser(text).parse(), names, ())


def _value(tree, names, inside):
    if isinstance(tree, float):
        return tree
    if isinstance(tree, str):
        return _look_up(tree, names, inside)
    if tree[0] == "call":
        if tree[1] not in FUNCTIONS:
            raise NameError("unknown function: {}".format(tree[1]))
        return FUNCTIONS[tree[1]](*(_value(argument, names, inside) for argument in tree[2]))
    sign, left, right = tree
    return SIGNS[sign](_value(left, names, inside), _value(right, names, inside))


def _look_up(name, names, inside):
    if name in inside:
        raise RecursionError(" -> ".join(inside + (name,)))
    if name not in names:
        raise NameError("unknown name: {}".format(name))
    meaning = names[name]
    if isinstance(meaning, str):
        return _value(Parser(meaning).parse(), names, inside + (name,))
    return float(meaning)
