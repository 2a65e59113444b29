"""The ledger: what was provisioned, what was set and why, what happened; it cannot be rebuilt from Git.

A `store` is its file and its transactions. Each other module is a book in it: functions that read from the store, and
functions that write in a transaction of it, which one transaction over several books calls one after the other.
"""
