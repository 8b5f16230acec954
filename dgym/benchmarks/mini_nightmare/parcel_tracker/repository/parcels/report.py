"""What the office reads in the morning."""

from parcels.events import read
from parcels.tracker import Tracker


def summary(text):
    """Count of parcels by state, as lines in the order of the alphabet."""
    tracker = Tracker()
    tracker.feed(read(text))
    counts = {}
    for parcel in tracker.parcels.values():
        counts[parcel.state] = counts.get(parcel.state, 0) + 1
    lines = ["{}: {}".format(state, counts[state]) for state in sorted(counts)]
    if tracker.rejected:
        lines.append("rejected events: {}".format(len(tracker.rejected)))
    return "\n".join(lines)
