"""Git: revisions as snapshots, fetched into a bare clone of gitboot's own.

`open_snapshot` reads what lies in a directory or in its repository, for the commands that look at it once. A
`Source` follows a `Remote` and keeps what was accepted.
"""

from pygit2 import LIBGIT2_VERSION

from gitboot.source.clone import Commit, Source
from gitboot.source.remote import Password, Remote, SshKey
from gitboot.source.snapshot import open_snapshot
from gitboot.source.worktree import WORKTREE

__all__ = ["LIBGIT2_VERSION", "WORKTREE", "Commit", "Password", "Remote", "Source", "SshKey", "open_snapshot"]
