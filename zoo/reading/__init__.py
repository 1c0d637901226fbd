"""From a zoo's name to checkpoints: finding it, mapping it into memory, choosing rows, streaming them."""
