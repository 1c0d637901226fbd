"""How fast the code is: training, reading, and the table of both."""
