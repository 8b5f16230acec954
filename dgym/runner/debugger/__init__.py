"""pdb for the agent: a debugger inside the task's program, and its host inside the runner.

The host (``host``, ``process``) starts the program when a command needs it, and answers every command. ``program`` and
its imports run inside the program, under the task's interpreter. ``takeover`` runs in the programs that a shell command
starts. This package imports none of these modules, because each process needs only some of them.
"""
