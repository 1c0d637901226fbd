"""The tasks the zoo's transformers are trained on: their files, their data as tensors, evaluation."""
