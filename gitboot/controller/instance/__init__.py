"""Instance: assembled from its settings and its state directory, or waiting as a standby."""
