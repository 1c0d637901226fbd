"""Fault tests: kills, damage, full disks, hostile files; the same functions serve the tests and the soak."""
