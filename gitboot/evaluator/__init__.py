"""Evaluate commits in a process of its own, by content keys.

`client` starts the process and assembles its answers, which `protocol` defines. In the process, `process` answers,
`evaluation` evaluates a commit with `content_keys`, `workers` divides the work, and `commit_report` tells what differs
from the base. `cache` encodes results, and `remote_cache` looks them up in a process that has the cache open.
`evaluation_result` is what an instance knows of a commit.
"""
