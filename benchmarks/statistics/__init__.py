"""Kendall's tau and how sure it is."""
