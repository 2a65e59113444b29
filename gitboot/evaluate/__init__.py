"""A commit evaluated in a process of its own: what it says, and what it changes against the one before.

`evaluator` reads and decides, `difference` is what comes of it, `wire` how that travels, `limits` what it may take, and
`forks` how several do it at once; ``python -m gitboot.evaluate`` is the process.
"""
