"""The leaderboard: one folder for each submission, and the command that checks, ranks and writes them."""
