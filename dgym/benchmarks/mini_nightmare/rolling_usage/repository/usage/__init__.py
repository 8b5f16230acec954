"""Consumption of a meter over any range of days."""
