"""The symmetries of a transformer's weights as mathematics: group elements, their action, and matching."""
