"""Tables laid out like the paper's, made from result rows and from nothing else."""
