"""The rows of a table: every predictor, and how each is fitted."""
