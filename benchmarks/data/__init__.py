"""The checkpoints a table is made from: train and validation lie open, the test split is opened once."""
