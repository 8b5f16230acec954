"""Tables of a league from the results of its matches."""
