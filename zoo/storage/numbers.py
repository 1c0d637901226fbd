"""Numbers from anywhere."""

import math


def is_finite(value: object) -> bool:
    """Whether it is a number that a float can hold, and not infinite: an integer may have hundreds of digits."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False
