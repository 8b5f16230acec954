"""The part of dgym that runs inside the sandbox, under whatever Python (3.6 or later) is there.

Standard library only, and nothing of the rest of dgym: this directory is copied or mounted into the user's container
and started as a program (see ``__main__.py``). The other side trusts none of its answers.
"""
