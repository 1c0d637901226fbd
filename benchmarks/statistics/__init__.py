"""Kendall's τ and its uncertainty."""
