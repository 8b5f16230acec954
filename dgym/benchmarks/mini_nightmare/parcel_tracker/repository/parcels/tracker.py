"""The state of every parcel.

A parcel is accepted, then travels from depot to depot, and ends delivered or
returned. Any depot may hold it (customs, a damaged label, a strike) and
release it again; it then goes on as before.
"""

FINAL = ("delivered", "returned")


class OutOfOrder(Exception):
    """An event that cannot follow what came before."""


class Parcel:
    """One parcel: where it is and in which state."""

    def __init__(self, number):
        self.number = number
        self.state = "announced"
        self.place = None
        self.resume_to = None
        self.stops = []

    def apply(self, event):
        """Bring the parcel up to date with an event."""
        if self.state in FINAL:
            raise OutOfOrder("{} is already {}".format(self.number, self.state))
        getattr(self, "_on_" + event.kind)(event)
        self.place = event.place

    def _on_accepted(self, event):
        if self.state != "announced":
            raise OutOfOrder("{} was accepted before".format(self.number))
        self._enter("in depot", event)

    def _on_loaded(self, event):
        if self.state == "held":
            raise OutOfOrder("{} is held and cannot be loaded".format(self.number))
        self._enter("on the road", event)

    def _on_held(self, event):
        self.resume_to = self.state
        self._enter("held", event)

    def _on_released(self, event):
        if self.state != "held":
            raise OutOfOrder("{} is not held".format(self.number))
        self._enter(self.resume_to, event)

    def _on_delivered(self, event):
        if self.state != "on the road":
            raise OutOfOrder("{} is {}, not on the road".format(self.number, self.state))
        self._enter("delivered", event)

    def _on_returned(self, event):
        self._enter("returned", event)

    def _enter(self, state, event):
        self.state = state
        self.stops.append((event.place, state))


class Tracker:
    """All parcels of a report."""

    def __init__(self):
        self.parcels = {}
        self.rejected = []

    def feed(self, events):
        """Apply events; those out of order are kept aside with the reason."""
        for event in events:
            parcel = self.parcels.setdefault(event.parcel, Parcel(event.parcel))
            try:
                parcel.apply(event)
            except OutOfOrder as error:
                self.rejected.append((event, str(error)))

    def in_state(self, state):
        """Numbers of the parcels in a state, sorted."""
        return sorted(p.number for p in self.parcels.values() if p.state == state)
