"""One protocol for every predictor: fit on train, choose on validation, test once."""
