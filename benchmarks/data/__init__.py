"""The checkpoints a table is made from: train and validation are open to all, the test split is used once."""
