"""The test suite: run by pytest, and by ``python -m tests.soak``."""
