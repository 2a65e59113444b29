"""gitboot as a package: built, installed on a minimal Debian, and used there.

It needs `packaging/packages.txt`, root, and Debian's packages from a mirror. `make test` omits these tests without
`--packages`, which CI passes.
"""
