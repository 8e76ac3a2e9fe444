"""Figures, from the results that they show."""
