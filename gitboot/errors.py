"""The errors that gitboot raises on purpose, grouped by the person who must act.

::

    GitbootError
    ├── TemporaryError              no action: the next reconcile tries again
    │   ├── SourceError             the repository cannot be read or fetched now
    │   │   ├── BranchMissing       the configured branch is not in the repository
    │   │   ├── CorruptClone        gitboot's own clone is damaged: gitboot clones again
    │   │   └── SubpathMissing      the newest commit does not contain the folder of the fleet
    │   ├── BmcUnreachable          the BMC sent no usable response
    │   ├── BmcBusy                 the BMC is busy, and may respond later
    │   │   └── BmcChanged          the BMC has changed since gitboot read it
    │   ├── HostUnreachable         a web server, an endpoint or a forge sent no usable response
    │   ├── SourceUnavailable       the server of an image source sent no usable response
    │   └── NotYetDone              the instance has not carried out a request yet
    ├── InvalidRepository           the author of a commit acts: all problems of the commit
    │   └── NotEvaluated            the evaluation exceeded a limit or was killed
    └── OperatorError               an operator acts: the fault stays until then
        ├── UsageError              a flag, a setting or a path is wrong
        │   ├── BmcNotTrusted       the instance may not send credentials to a BMC
        │   └── BranchNotNamed      gitboot cannot determine the branch: set --rev
        ├── StaleDigest             an acknowledgement names changes that are not held
        ├── SourceRefused           authentication, a host key or a signature was rejected
        ├── SourceTooLarge          a fetch needs more memory or disk than its limit
        ├── LockedByAnother         another instance uses this directory
        │   └── HeldByAnother       an instance on another host holds the lease of the ledger
        ├── PublishError            the output tree cannot be written
        │   └── ForeignTree         the output tree belongs to another ledger
        ├── AssetError              a boot loader or an artifact cannot be stored
        │   └── ArtifactMissing     an artifact was not found at its source
        ├── LedgerError             the ledger cannot be read or written
        │   ├── DamagedLedger       the ledger is inconsistent
        │   ├── LedgerLeft          the ledger was moved to another location
        │   ├── LedgerUnfinished    the copy of a ledger is incomplete
        │   └── LeaseLost           another instance may use the ledger
        ├── BmcRejected             the BMC rejected credentials or a setting
        ├── ForgeRefused            the forge rejected a token, its rights or a project
        ├── RegistryRefused         a registry rejected a request, or may not be contacted
        │   └── NotInRegistry       the image is not in the registry
        └── UnusableSource          the releases of an image source cannot be used
            ├── MalformedIndex      an index, or a list of digests, is not in its format
            ├── UntrustedIndex      an index has no signature by a key of the source
            ├── StaleIndex          the newest image of the fleet is newer than all releases of an index
            ├── IncompleteRelease   a release lacks a file, a digest or an architecture
            └── UntrustedRelease    a file of a release has another digest, or no valid signature

Some modules derive their own errors from these classes. Every other error is a bug in gitboot, and prints a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple, Protocol

from gitboot.problems import DatedProblem, Problem, find_problems_at


class GitbootError(Exception):
    """The base class of every error that gitboot raises on purpose. Users see its message without a traceback."""


class TemporaryError(GitbootError):
    """A temporary fault. A later attempt may succeed."""

    def __init__(self, message: str, *, retry_after_s: int | None = None) -> None:
        self.retry_after_s = retry_after_s  # the Retry-After header of a response
        super().__init__(message)


class SourceError(TemporaryError):
    """The repository cannot be read or fetched now."""


class CorruptClone(SourceError):
    """gitboot's own clone is damaged or missing, and gitboot must clone the remote again."""


class BranchMissing(SourceError):
    """The configured branch, tag or commit is not in the repository."""


class SubpathMissing(SourceError):
    """A commit does not contain the folder of the fleet."""


class NotYetDone(TemporaryError):
    """The instance has not carried out the request yet."""


class BmcUnreachable(TemporaryError):
    """A BMC sent no usable response."""


class BmcBusy(TemporaryError):
    """A BMC temporarily rejected a request: it is in POST, busy, or has changed since the last read."""


class BmcChanged(BmcBusy):
    """A BMC has changed since gitboot read it, so gitboot did not write to the BMC."""


class HostUnreachable(TemporaryError):
    """A web server sent no usable response."""


class FleetOrders(NamedTuple):
    """The settings of a Fleet document that apply immediately, even if the commit is held or rejected."""

    stopped: str | None  # the reason why gitboot must not offer install boots; None: gitboot may offer them
    ledger: str | None  # identifier of the ledger whose instance may act; None: any instance may act


class FleetWithOrders(Protocol):
    """A fleet that can return its `FleetOrders`."""

    def find_orders(self, site: str | None) -> FleetOrders:
        """Return the orders for the instance of a site.

        If ``site`` is None, return the orders for the instance of all sites.
        """


class InvalidRepository(GitbootError):
    """A commit is invalid. The error contains all problems of the commit, sorted by location."""

    def __init__(
        self, problems: Iterable[Problem], *, fleet: FleetWithOrders | None = None, dated: Iterable[DatedProblem] = ()
    ) -> None:
        self.problems = tuple(sorted(problems))
        self.dated = tuple(dated)  # problems that depend on the time; they are not in `problems`
        self.fleet = fleet  # None: the Fleet document is malformed
        super().__init__("\n".join(map(str, self.problems)))

    def at(self, now: datetime) -> InvalidRepository:
        """Return this error, including the dated problems that exist at an instant."""
        if not (found := find_problems_at(self.dated, now)):
            return self
        return InvalidRepository((*self.problems, *found), fleet=self.fleet)


class NotEvaluated(InvalidRepository):
    """The evaluation of a commit ran out of time or was killed.

    The commit may be valid, so a later evaluation may succeed.
    """


class OperatorError(GitbootError):
    """A fault that stays until a person changes something."""


class UsageError(OperatorError):
    """A flag, a setting or a path is wrong."""


class BranchNotNamed(UsageError):
    """gitboot cannot determine which branch to follow, so the operator must set --rev."""


class BmcNotTrusted(UsageError):
    """The settings of the instance do not allow gitboot to send credentials to a BMC that a document names."""


class StaleDigest(OperatorError):
    """An acknowledgement refers to changes that no guard holds, or no longer holds."""


class SourceRefused(OperatorError):
    """Authentication, a host key or a signature was rejected."""


class SourceTooLarge(OperatorError):
    """A fetch needs more memory or disk than its limit."""


class LockedByAnother(OperatorError):
    """Another running instance holds a lock on this directory."""


class HeldByAnother(LockedByAnother):
    """An instance on another host holds the lease of this ledger."""


class PublishError(OperatorError):
    """The output tree cannot be written as planned."""


class ForeignTree(PublishError):
    """The output tree belongs to another ledger."""


class AssetError(OperatorError):
    """A boot loader or an artifact cannot be fetched, or cannot be stored in the output tree."""


class ArtifactMissing(AssetError):
    """An artifact was not found at its source."""


class LedgerError(OperatorError):
    """The ledger cannot be read or written, or another version of gitboot wrote it."""


class DamagedLedger(LedgerError):
    """The ledger is inconsistent, and its content must be restored from elsewhere."""


class LedgerLeft(LedgerError):
    """The ledger was moved, and an instance now uses the copy at the new location."""


class LedgerUnfinished(LedgerError):
    """A copy of a ledger is incomplete and cannot be used."""


class LeaseLost(LedgerError):
    """Another instance uses or may use this ledger.

    Therefore this instance neither writes to the ledger nor sets boot overrides.
    """


class BmcRejected(OperatorError):
    """A BMC rejected a request and would reject the same request again, for example because of wrong credentials."""


class ForgeRefused(OperatorError):
    """A forge permanently rejected a request, because of the token, the rights of the token, or the project."""


class RegistryRefused(OperatorError):
    """An OCI registry rejected a request, may not be contacted, or returned something that is not an image."""


class NotInRegistry(RegistryRefused):
    """An image, or a file of an image, is not in the registry."""


class SourceUnavailable(TemporaryError):
    """The server of an image source sent no usable response."""

    def __init__(self, place: str, cause: str, hint: str = "try again later") -> None:
        self.place, self.cause, self.hint = place, cause, hint
        super().__init__(f"{place}: {cause}; {hint}")


class UnusableSource(OperatorError):
    """The releases of an image source cannot be used. ``place`` is a URL, or the name of the source."""

    def __init__(self, place: str, cause: str, hint: str) -> None:
        self.place, self.cause, self.hint = place, cause, hint
        super().__init__(f"{place}: {cause}; {hint}")


class MalformedIndex(UnusableSource):
    """An index of an image source, or a list of digests, does not have the expected format."""


class UntrustedIndex(UnusableSource):
    """An index of an image source is not signed with a key of the source."""


class StaleIndex(UnusableSource):
    """The newest image of the fleet is newer than all releases of an index."""


class IncompleteRelease(UnusableSource):
    """A release does not exist, or lacks a file, a digest or an architecture."""


class UntrustedRelease(UnusableSource):
    """A file of a release has a digest that the vendor did not publish, or has no signature by a trusted key."""
