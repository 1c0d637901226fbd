"""The version of this code, recorded with everything it makes. It changes whenever the numbers it makes change."""

VERSION = "0.1.0"
