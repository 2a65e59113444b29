"""Instance: built from its settings and its state directory, or waiting as a standby."""
