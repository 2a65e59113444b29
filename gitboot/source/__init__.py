"""Git: revisions as snapshots, fetched into a bare clone of gitboot's own.

`open_snapshot` reads what lies in a directory or in its repository, for the commands that look at it once;
`open_blame` says who wrote its lines, and `open_history` which commits led to it. A `Source` follows a `Remote` and
keeps what was accepted; what it fetches a `FetchProcess` may unpack, in a process of its own.
"""

from pygit2 import LIBGIT2_VERSION

from gitboot.source.blame import Blame, open_blame
from gitboot.source.clone import Reader, Source
from gitboot.source.commits import CommitSummary
from gitboot.source.fetcher import FetchProcess
from gitboot.source.history import History, open_history
from gitboot.source.remote import Password, Remote, SshKey
from gitboot.source.snapshot import open_snapshot
from gitboot.source.worktree import WORKTREE

__all__ = [
    "LIBGIT2_VERSION",
    "WORKTREE",
    "Blame",
    "CommitSummary",
    "FetchProcess",
    "History",
    "Password",
    "Reader",
    "Remote",
    "Source",
    "SshKey",
    "open_blame",
    "open_history",
    "open_snapshot",
]
