"""Run one instance: accept commits, learn what machines did, plan, publish boot files, set BMCs, and report."""
