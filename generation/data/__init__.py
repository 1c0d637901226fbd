"""What the transformers are trained on: a task's examples, its word vectors, and the batches of each epoch."""
