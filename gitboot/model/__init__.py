"""The seven kinds that a fleet repository is written in, as frozen values."""
