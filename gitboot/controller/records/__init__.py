"""Records of servers: decide what fetches, BMC results and operator requests change in the ledger."""
