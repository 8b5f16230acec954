"""One side of the book: queues of orders by price."""

from collections import OrderedDict


class Side:
    """Orders to buy (highest price first) or to sell (lowest price first)."""

    def __init__(self, highest_first):
        self.highest_first = highest_first
        self.levels = {}

    def add(self, order):
        """Queue an order behind those of the same price."""
        queue = self.levels.setdefault(order.price, OrderedDict())
        queue[order.number] = order

    def remove(self, order):
        """Take an order out."""
        queue = self.levels[order.price]
        del queue[order.number]
        if not queue:
            del self.levels[order.price]

    def prices(self):
        """Prices in the order in which they are served."""
        return sorted(self.levels, reverse=self.highest_first)

    def best(self):
        """The order that is served next, or None."""
        for price in self.prices():
            return next(iter(self.levels[price].values()))
        return None

    def depth(self):
        """Price and quantity of each level, best first."""
        return [
            ("{:.2f}".format(price), sum(order.quantity for order in self.levels[price].values()))
            for price in self.prices()
        ]
