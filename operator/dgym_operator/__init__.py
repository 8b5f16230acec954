"""The controller: one pod per episode, ready episodes to agents with free slots, the pod's end into status."""
