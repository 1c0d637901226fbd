"""Bytes on disk: files and folders that are whole or absent, locks, and readers that trust nothing they read."""
