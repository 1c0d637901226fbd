"""A zoo as a static page: its tables as data, its pictures, and the HTML that holds both."""

from zoo.site.predictions import Predictions, read_predictions
from zoo.site.writing import write_page

__all__ = ["Predictions", "read_predictions", "write_page"]
