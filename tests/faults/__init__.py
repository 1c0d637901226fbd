"""What must not go wrong when everything else does; the same functions serve the tests and the soak."""
