"""What is handed in to the leaderboard: read, checked, scored, ranked, and written from a predictor."""
