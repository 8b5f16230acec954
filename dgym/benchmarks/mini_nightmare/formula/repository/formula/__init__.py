"""Formulas with names, as in a spreadsheet."""
