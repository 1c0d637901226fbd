"""Tables laid out like those of the paper, made only from result rows."""
