"""Learn from fetches, BMC results and requests what changes in the ledger."""
