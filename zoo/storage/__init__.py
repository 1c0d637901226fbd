"""Bytes on disk: files and folders that are whole or absent, locks, and files from anywhere, read with limits."""
