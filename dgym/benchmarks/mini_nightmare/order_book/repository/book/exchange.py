"""Both sides together."""

from book.levels import Side
from book.orders import Order


class Exchange:
    """Takes orders, matches them, and keeps what is left."""

    def __init__(self):
        self.sides = {"buy": Side(highest_first=True), "sell": Side(highest_first=False)}
        self.open = {}
        self.trades = []

    def place(self, side, price, quantity):
        """Place an order and return its number."""
        order = Order(len(self.open) + len(self.trades) + 1, side, price, quantity)
        self._match(order)
        return order.number

    def improve(self, number, ticks):
        """Offer a better price; the order loses its place in time."""
        order = self.open.pop(number)
        self.sides[order.side].remove(order)
        self._match(order.improved(ticks))

    def _match(self, order):
        other = self.sides["sell" if order.side == "buy" else "buy"]
        while order.quantity:
            best = other.best()
            if best is None or not self._crosses(order, best):
                break
            quantity = min(order.quantity, best.quantity)
            order.quantity -= quantity
            best.quantity -= quantity
            self.trades.append((order.number, best.number, quantity, "{:.2f}".format(best.price)))
            if not best.quantity:
                other.remove(best)
                del self.open[best.number]
        if order.quantity:
            self.open[order.number] = order
            self.sides[order.side].add(order)

    @staticmethod
    def _crosses(order, best):
        if order.side == "buy":
            return order.price >= best.price
        return order.price <= best.price
