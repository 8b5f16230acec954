"""The commands that talk to a cluster: ``submit``, ``get``, ``logs``, ``results`` and ``cancel``.

Their modules are imported by name when a command is used, so that ``dgym --help`` loads none of them.
"""
