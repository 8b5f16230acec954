"""The part of dgym that runs inside the sandbox, under any Python from 3.6 on.

This directory is copied or mounted into the user's container and started as a program (see ``__main__.py``). It
therefore imports only the standard library and nothing from the rest of dgym. The trusted side validates every answer
of the runner.
"""
