"""Git: revisions as snapshots, fetched into a bare clone of gitboot's own.

`open_snapshot` reads what lies in a directory or in its repository, for the commands that look at it once;
`open_blame` says who wrote its lines, and `open_history` which commits led to it. A `Source` follows a `Remote` and
keeps what was accepted; what it fetches a `FetchProcess` may unpack, in a process of its own.
"""
