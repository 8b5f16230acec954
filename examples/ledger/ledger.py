"""Balances of accounts, with undo."""


class Ledger:
    """Accounts by name."""

    def __init__(self, balances):
        """Open the accounts."""
        self.balances = dict(balances)
        self._past = []

    def transfer(self, source, target, amount):
        """Move an amount; what was before can be had back with ``undo``."""
        self._past.append(self.balances)
        self.balances[source] -= amount
        self.balances[target] = self.balances.get(target, 0) + amount

    def undo(self):
        """Take back the last transfer, if there is one."""
        if self._past:
            self.balances = self._past.pop()
