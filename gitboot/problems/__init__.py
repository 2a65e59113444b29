"""Problems of a commit: codes, places, and the formats in which code hosts and CI systems show them."""
