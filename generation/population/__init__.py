"""Trains hundreds of transformers at once: their state, the torch engine, and the loop around any engine."""
