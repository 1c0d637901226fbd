"""How fast the code is: training and reading."""
