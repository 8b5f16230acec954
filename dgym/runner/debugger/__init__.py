"""pdb for the agent: a debugger inside the task's program, and its host inside the runner.

The host (``host``, ``process``) starts the program when a command needs it and answers every command. The
program's side (``program`` and what it imports) runs under the task's interpreter. ``takeover`` runs in the programs
that a shell command starts. Importing this package imports none of them: each process needs one side only.
"""
