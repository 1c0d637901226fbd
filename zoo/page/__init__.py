"""A zoo as a static page: its tables as data, its pictures, and the HTML that holds both."""
