"""Undo and redo over snapshots."""


class History:
    """What a grid was before each change, and after those taken back."""

    def __init__(self, limit=100):
        self.limit = limit
        self.past = []
        self.future = []

    def remember(self, state):
        """Keep a state before it changes; what was undone is forgotten."""
        self.past.append(state)
        if len(self.past) > self.limit:
            del self.past[0]
        self.future.clear()

    def back(self, present):
        """The state before the last change, or the present one."""
        if not self.past:
            return present
        self.future.append(present)
        return self.past.pop()

    def forward(self, present):
        """The state after the last undo, or the present one."""
        if not self.future:
            return present
        self.past.append(present)
        return self.future.pop()
