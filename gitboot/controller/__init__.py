"""Run one instance: accept commits, learn from fetches and BMCs, plan, publish boot files, set BMCs, and report."""
