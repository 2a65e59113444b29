"""Every error that gitboot raises on purpose, by who has to act on it.

::

    GitbootError
    ├── TryAgain                    nobody acts: the next pass tries again
    │   ├── SourceError             the repository cannot be read or fetched now
    │   │   ├── BranchMissing       the repository does not have the branch that is followed
    │   │   ├── CorruptClone        gitboot's own clone is damaged: `Source.restore` makes it anew
    │   │   └── SubpathMissing      the newest commit has no such folder; perhaps the next one has
    │   ├── BmcUnreachable          no answer, or not one that can be used
    │   ├── BmcBusy                 the BMC answered: not now
    │   │   └── BmcChanged          what was to be written rests on a reading that is old
    │   ├── HostUnreachable         a web server, an endpoint or a forge, gave no answer that can be used
    │   └── NotYetDone              the instance has not taken up yet what it was asked for
    ├── InvalidRepository           the author: a commit's problems, all of them
    └── OperatorError               the operator: it does not go away by itself
        ├── UsageError              a flag, a setting, a path is wrong
        │   ├── BmcNotTrusted       the instance does not say that a BMC may be sent its credentials
        │   └── BranchNotNamed      gitboot cannot find the branch to follow: --rev names one
        ├── StaleDigest             an acknowledgement of changes that are not the ones at hand
        ├── SourceRefused           authentication, host key, signature
        ├── SourceTooLarge          to fetch it takes more memory than that may
        ├── LockedByAnother         another instance holds this directory
        ├── PublishError            the tree cannot be written
        │   └── ForeignTree         it belongs to another ledger
        ├── AssetError              what machines fetch besides their boot files cannot be placed
        │   └── ArtifactMissing     who has to have an artifact says that there is none
        ├── LedgerError             the ledger cannot be read or written, or is of another version
        │   ├── DamagedLedger       it does not hold together
        │   ├── LedgerLeft          it was copied elsewhere, and goes on there
        │   └── LedgerUnfinished    it is a copy that has not ended
        ├── BmcRejected             the BMC answered no: credentials, an unsupported setting
        ├── ForgeRefused            the forge answered no: a token, a project, what it may do
        └── RegistryRefused         a registry answered no, or may not be asked: a token, a host, what it has
            └── NotInRegistry       it does not have that

Anything else is a bug of gitboot's own and ends in its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple, Protocol

from gitboot.problems import DatedProblem, Problem, find_problems_at


class GitbootError(Exception):
    """The root: everything below is raised on purpose and reaches a person without a traceback."""


class TryAgain(GitbootError):
    """A fault that may be gone at the next try."""


class SourceError(TryAgain):
    """The repository cannot be read or fetched now."""


class CorruptClone(SourceError):
    """gitboot's own clone is damaged or lost, and is to be made anew from the remote."""


class BranchMissing(SourceError):
    """The repository does not have the branch, the tag or the commit that is followed."""


class SubpathMissing(SourceError):
    """A commit does not have the folder in which the fleet is to lie."""


class NotYetDone(TryAgain):
    """What was asked for waits for the instance, which has not taken it up yet."""


class BmcUnreachable(TryAgain):
    """A BMC gave no answer, or none that can be used."""


class BmcBusy(TryAgain):
    """A BMC refused for now: in POST, at work on something else, or changed since it was read."""

    def __init__(self, message: str, *, retry_after_s: int | None = None) -> None:
        self.retry_after_s = retry_after_s  # what the BMC asked for
        super().__init__(message)


class BmcChanged(BmcBusy):
    """A BMC is not as it was read: nothing is written."""


class HostUnreachable(TryAgain):
    """A web server gave no answer, or none that can be used."""

    def __init__(self, message: str, *, retry_after_s: int | None = None) -> None:
        self.retry_after_s = retry_after_s  # what it asked for
        super().__init__(message)


class Orders(NamedTuple):
    """What a commit's Fleet says that is obeyed at once, whether the commit is accepted or not."""

    stopped: str | None  # why no boot that writes disks is to be offered
    ledger: str | None  # of the instance that is to act; None: whichever


class Ordering(Protocol):
    """A Fleet, as far as it is obeyed at once."""

    def orders_at(self, site: str | None) -> Orders:
        """What it says to the instance for ``site``; None: for all sites."""


class InvalidRepository(GitbootError):
    """A commit that does not hold together, with every problem in it, sorted by place."""

    def __init__(
        self, problems: Iterable[Problem], *, fleet: Ordering | None = None, dated: Iterable[DatedProblem] = ()
    ) -> None:
        self.problems = tuple(sorted(problems))
        self.dated = tuple(dated)  # that depend on the time, and are not among `problems`
        self.fleet = fleet  # None: it is not well formed
        super().__init__("\n".join(map(str, self.problems)))

    def at(self, now: datetime) -> InvalidRepository:
        """Return the error with the problems that hold at an instant among its own."""
        if not (found := find_problems_at(self.dated, now)):
            return self
        return InvalidRepository((*self.problems, *found), fleet=self.fleet)


class NotEvaluated(InvalidRepository):
    """A commit whose evaluation ran out of time or was killed. It may be valid: a later evaluation may end."""


class OperatorError(GitbootError):
    """A fault that stays until a person changes something."""


class UsageError(OperatorError):
    """A flag, a setting or a path that cannot be what was meant."""


class BranchNotNamed(UsageError):
    """The repository does not tell which branch to follow, so --rev has to name one."""


class BmcNotTrusted(UsageError):
    """A BMC that the instance's own settings do not let have the credentials that a document names for it."""


class StaleDigest(OperatorError):
    """An acknowledgement of changes that are not, or not any more, the ones that are held."""


class SourceRefused(OperatorError):
    """Authentication, a host key or a signature was refused."""


class SourceTooLarge(OperatorError):
    """A fetch needs more memory or disk than it may take."""


class LockedByAnother(OperatorError):
    """Another running instance holds this directory."""


class HeldByAnother(LockedByAnother):
    """An instance on another host has the lease of this ledger."""


class PublishError(OperatorError):
    """The tree of files cannot be brought to what was planned."""


class ForeignTree(PublishError):
    """The tree of files belongs to another ledger."""


class AssetError(OperatorError):
    """A loader or an artifact cannot be had, or not be placed where machines fetch it."""


class ArtifactMissing(AssetError):
    """Who has to have an artifact says that there is none."""


class LedgerError(OperatorError):
    """The ledger is damaged, or was written by another version."""


class DamagedLedger(LedgerError):
    """The ledger does not hold together: what it knew has to come from elsewhere."""


class LedgerLeft(LedgerError):
    """The ledger was copied to another place, and goes on there."""


class LedgerUnfinished(LedgerError):
    """This is a copy of a ledger that has not ended, and no ledger yet."""


class LeaseLost(LedgerError):
    """Another instance acts by this ledger, or may: nothing is written or set any more."""


class BmcRejected(OperatorError):
    """A BMC answered no, and will again: credentials, a certificate, an unsupported setting."""


class ForgeRefused(OperatorError):
    """A forge answered no, and will again: the token, its rights, or the project."""


class RegistryRefused(OperatorError):
    """An OCI registry that may not be asked, answered no, or has something else than an image."""


class NotInRegistry(RegistryRefused):
    """An image, or a file of one, that its registry does not have."""
