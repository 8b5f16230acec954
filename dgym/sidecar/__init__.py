"""The HTTP server of a session, which has the only network port of an episode's pod: ``python -m dgym.sidecar``."""
