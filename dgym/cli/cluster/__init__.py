"""The commands that talk to a cluster: ``submit``, ``get``, ``logs``, ``results`` and ``cancel``."""
