"""Prices: day and night rates by the subscriber's local time."""

DAY = range(7, 21)
DAY_CENTS, NIGHT_CENTS = 12, 5


def minutes(seconds):
    """Minutes begun count."""
    return -(-seconds // 60)


def price(call, zone):
    """The price of a call in cents; the rate is that of its beginning."""
    local = call.start.astimezone(zone)
    rate = DAY_CENTS if local.hour in DAY and local.weekday() < 5 else NIGHT_CENTS
    return minutes(call.seconds) * rate
