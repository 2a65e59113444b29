"""Records of servers: the changes to the ledger that follow from fetches, BMC results and operator requests."""
