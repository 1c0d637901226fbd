"""The rows of a table: every model and how it is fitted."""
