"""The leaderboard: checks, scores and ranks the submissions in ``benchmarks/submissions/``, and writes new ones."""
