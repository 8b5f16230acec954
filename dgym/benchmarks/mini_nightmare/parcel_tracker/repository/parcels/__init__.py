"""Follow parcels by the events that depots report."""
