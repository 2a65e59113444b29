"""Run one instance: fetch, accept, learn, plan, publish, set BMCs and report."""
