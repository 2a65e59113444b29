"""Problems in the formats that code hosts and CI systems show: the same facts, the worst first, in each."""

from gitboot.annotate.github import github
from gitboot.annotate.junit import junit
from gitboot.annotate.sarif import sarif

__all__ = ["github", "junit", "sarif"]
