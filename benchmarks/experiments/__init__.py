"""One protocol for every model: fit on train, choose on validation, test once."""
