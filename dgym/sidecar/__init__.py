"""The HTTP face of a session: the only network port in an episode's pod. ``python -m dgym.sidecar`` runs it."""
