"""Predictors of a checkpoint's accuracy: Transformer-NFN and the neural baselines, and how they are stored."""
