"""Controller: runs one instance, which accepts commits, processes fetches, plans boots, publishes files and sets
BMCs.
"""
