"""The operator. It reconciles Episodes, EpisodeSets and SandboxPools.

Each attempt of an Episode has one sandbox pod, which is assigned to an agent pod with a free slot.
"""
