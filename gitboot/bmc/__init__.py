"""Set boot overrides, power and media of one BMC or of many."""
