"""The operator: reconciles Episodes and EpisodeSets, one pod for each attempt, assigned to agents with free slots."""
