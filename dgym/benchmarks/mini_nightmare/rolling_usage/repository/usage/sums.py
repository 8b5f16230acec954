"""Running sums, so that the total of a range costs two look-ups."""


class RunningSums:
    """Values by consecutive positions; the oldest are dropped when there are too many.

    ``start`` is the position of the first value still known.
    """

    def __init__(self, capacity=1000):
        self.capacity = capacity
        self.start = 0
        self._sums = [0]

    @property
    def end(self):
        """The position after the last value."""
        return self.start + len(self._sums) - 1

    def append(self, value):
        """Add the next value."""
        self._sums.append(self._sums[-1] + value)
        if len(self._sums) - 1 > self.capacity:
            self._compact()

    def total(self, first, last):
        """The sum of the values from ``first`` to ``last``, both included."""
        if not self.start <= first <= last < self.end:
            raise LookupError("only {} to {} are known".format(self.start, self.end - 1))
        return self._sums[last - self.start + 1] - self._sums[first - self.start]

    def _compact(self):
        """Forget the older half, so that this is rarely needed."""
        dropped = len(self._sums) // 2
        self._sums = self._sums[dropped + 1:]
        self.start += dropped
