"""gitboot as it is installed: built, put on a Debian on which nothing else is, and used there.

It needs `packaging/packages.txt`, root, and Debian's packages from a mirror; `make test` leaves it out without
`--packages`, as CI gives it.
"""
