"""The zoo's transformer: its dimensions, its weights as one flat vector, and the torch module that runs them."""
