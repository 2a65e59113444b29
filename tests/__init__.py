"""The tests: folders mirror the packages of gitboot."""
