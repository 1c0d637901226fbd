"""Training several predictors at once: their parameters stacked, their step recorded as a CUDA graph."""
