"""Orders as they arrive."""

TICK = 0.05


class Order:
    """So many pieces at a price or better."""

    def __init__(self, number, side, price, quantity):
        if side not in ("buy", "sell"):
            raise ValueError("side is buy or sell")
        if quantity <= 0:
            raise ValueError("quantity must be positive")
        self.number = number
        self.side = side
        self.price = price
        self.quantity = quantity

    def improved(self, ticks):
        """The same order at a price that is better for the other side."""
        step = ticks * TICK if self.side == "buy" else -ticks * TICK
        return Order(self.number, self.side, self.price + step, self.quantity)

    def __repr__(self):
        return "<{} {} {} at {:.2f}>".format(self.number, self.side, self.quantity, self.price)
