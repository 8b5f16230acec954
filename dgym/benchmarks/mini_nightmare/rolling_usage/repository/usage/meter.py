"""A meter that is read now and then."""

from datetime import timedelta

from usage.sums import RunningSums


class Meter:
    """Readings of a counter, spread evenly over the days between them."""

    def __init__(self, first_day, reading, capacity=1000):
        self.first_day = first_day
        self.last_day = first_day
        self.last_reading = reading
        self.daily = RunningSums(capacity)

    def read(self, day, reading):
        """Note a reading of the counter, later than the last one."""
        days = (day - self.last_day).days
        if days <= 0 or reading < self.last_reading:
            raise ValueError("readings must go forward")
        used = reading - self.last_reading
        for number in range(days):
            share = used // days + (1 if number < used % days else 0)
            self.daily.append(share)
        self.last_day, self.last_reading = day, reading

    def used(self, first, last):
        """What was used from one day to another, both included."""
        return self.daily.total((first - self.first_day).days, (last - self.first_day).days)

    def known(self):
        """The first and the last day that can be asked for."""
        day = timedelta(days=1)
        return self.first_day + self.daily.start * day, self.first_day + (self.daily.end - 1) * day
