"""Evaluate commits in a separate process, by content keys.

`client` starts the process and assembles its answers, which `protocol` defines. In the process, `process` answers
questions, `evaluation` evaluates a commit with `content_keys`, `workers` divides the work, and `commit_report` yields
the differences from the base. `cache` encodes results, and `remote_cache` looks them up in another process, which has
the cache open. `evaluation_result` has the values that an instance gets of a commit.
"""
