"""Git: revisions as snapshots, fetched into a bare clone of gitboot's own.

`open_snapshot` reads what lies in a directory or in its repository, for the commands that look at it once;
`open_blame` says who wrote its lines, and `open_history` which commits led to it. A `Source` follows a `Remote` and
keeps what was accepted; what it fetches a `FetchProcess` may unpack, in a process of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gitboot.lazy import names_of

if TYPE_CHECKING:
    from pygit2 import LIBGIT2_VERSION

    from gitboot.source.blame import Blame, open_blame
    from gitboot.source.clone import Reader, Source
    from gitboot.source.commits import CommitSummary
    from gitboot.source.fetcher import FetchProcess
    from gitboot.source.history import History, open_history
    from gitboot.source.remote import Password, Remote, SshKey
    from gitboot.source.repository import features
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
    "features",
    "open_blame",
    "open_history",
    "open_snapshot",
]

_WHERE: Final = {
    "Blame": "gitboot.source.blame",
    "CommitSummary": "gitboot.source.commits",
    "FetchProcess": "gitboot.source.fetcher",
    "History": "gitboot.source.history",
    "LIBGIT2_VERSION": "pygit2",
    "Password": "gitboot.source.remote",
    "Reader": "gitboot.source.clone",
    "Remote": "gitboot.source.remote",
    "Source": "gitboot.source.clone",
    "SshKey": "gitboot.source.remote",
    "WORKTREE": "gitboot.source.worktree",
    "features": "gitboot.source.repository",
    "open_blame": "gitboot.source.blame",
    "open_history": "gitboot.source.history",
    "open_snapshot": "gitboot.source.snapshot",
}
__getattr__ = names_of(__name__, _WHERE)  # a command that reads one snapshot needs nothing of a fetch
