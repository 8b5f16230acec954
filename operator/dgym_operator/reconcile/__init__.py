"""What ought to be done, decided from what is there. Pure: no client, no clock, no random, no environment."""
