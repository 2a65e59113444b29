"""The tests; one module for each module of gitboot."""
