"""Tokens as trees: numbers, names, ("call", name, arguments) and (sign, left, right).

    sum      = product  {("+" | "-") product}
    product  = power    {("*" | "/") power}
    power    = atom     ["^" power]
    atom     = number | name | name "(" sum {"," sum} ")" | "(" sum ")" | "-" atom
"""

from formula.tokens import tokenize


class Parser:
    """Reads one formula."""

    def __init__(self, text):
        self.tokens = tokenize(text)
        self.at = 0

    def parse(self):
        """The tree of the whole formula."""
        tree = self._sum()
        if self._next().kind != "end":
            raise SyntaxError("{!r} was not expected at {}".format(self._next().text, self._next().at))
        return tree

    def _next(self):
        return self.tokens[self.at]

    def _take(self, *texts):
        token = self._next()
        if token.text and token.text in texts:
            self.at += 1
            return token.text
        return None

    def _sum(self):
        return self._chain(self._product, "+", "-")

    def _product(self):
        return self._chain(self._power, "*", "/")

    def _chain(self, part, *signs):
        left = part()
        sign = self._take(*signs)
        if sign is None:
            return left
        return (sign, left, self._chain(part, *signs))

    def _power(self):
        base = self._atom()
        return ("^", base, self._power()) if self._take("^") else base

    def _atom(self):
        if self._take("-"):
            return ("-", 0.0, self._atom())
        if self._take("("):
            tree = self._sum()
            self._expect(")")
            return tree
        token = self._next()
        self.at += 1
        if token.kind == "number":
            return float(token.text)
        if token.kind == "name":
            return self._call(token.text) if self._take("(") else token.text
        raise SyntaxError("a value was expected at {}".format(token.at))

    def _call(self, name):
        arguments = [self._sum()]
        while self._take(","):
            arguments.append(self._sum())
        self._expect(")")
        return ("call", name, arguments)

    def _expect(self, text):
        if not self._take(text):
            raise SyntaxError("{!r} is missing at {}".format(text, self._next().at))
