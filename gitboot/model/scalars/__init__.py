"""One parser for each kind of scalar: source text in, a normalised value out, or `Malformed`."""
