"""From another system to a fleet: what it knows as documents, and what it answers compared with them."""
