"""Records of servers: the ledger changes that fetches, BMC results and operator requests cause."""
