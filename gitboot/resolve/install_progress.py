"""The installation of a server that has begun, until there is evidence that it is complete."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gitboot.jsonio import Digest, format_instant
from gitboot.model.graces import SERVED_GRACE
from gitboot.model.scalars.machines import SystemUuid
from gitboot.resolve.install_attempts import overtaken_attempt
from gitboot.resolve.provisioning_record_from_plan import InstallAttempt, InstallStep, Record
from gitboot.resolve.server_decision_from_plan import token
from gitboot.resolve.server_plan import EVIDENCE_OF_A_BEGINNING, InstallProgress, InstallState


def progress_of(record: Record | None, at: datetime) -> InstallProgress | None:
    """Return how far the installation of a server has come at an instant. None: no installation is under way.

    An attempt counts from its first fetch on, whatever the newest commit wants by now, until there is evidence of its
    completion. If that evidence is only a fetch or a consumed override, or if a maintenance has written the disks, the
    installation counts as served until the machine fetches a boot of its disk, for at most `SERVED_GRACE`.
    """
    if record is None:
        return None
    if (attempt := _unfinished(record)) is not None:
        return _of_attempt(InstallState.INSTALLING, attempt, None)
    served = [each for each in _served(record) if each.until is not None and each.at <= at < each.until]
    return max(served, key=lambda each: each.at, default=None)


def disk_boot_token(uuid: SystemUuid, progress: InstallProgress | None) -> Digest | None:
    """Return what names the boot of the disk that ends a served installation. None: no such boot is waited for."""
    if progress is None or progress.state is not InstallState.SERVED:
        return None
    return token(uuid, "disk", format_instant(progress.since), format_instant(progress.at))


def _unfinished(record: Record) -> InstallAttempt | None:
    """Return the last attempt if nothing has shown its completion since its last boot was served."""
    if record.provision is not None:
        return overtaken_attempt(record)
    last = record.attempts[-1] if record.attempts else None
    since = record.provisioned_at  # when a person recorded that the server is pending: `gitboot records set`
    return None if last is None or (since is not None and last.boots[-1].at <= since) else last


def _served(record: Record) -> Iterator[InstallProgress]:
    """Yield what was served without a report of its completion, and without a boot of the disk since."""
    last = record.attempts[-1] if record.attempts else None
    if record.evidence in EVIDENCE_OF_A_BEGINNING and record.provisioned_at is not None:
        until = record.provisioned_at + SERVED_GRACE
        if last is None:
            yield InstallProgress(
                InstallState.SERVED, record.provisioned_at, InstallStep.ATTEMPTED, record.provisioned_at, until
            )
        elif last.disk_boot is None:
            yield _of_attempt(InstallState.SERVED, last, until)
    run = record.runs.get(record.overwritten_by or "")
    if run is not None and run.given is not None and run.disk_boot is None:
        seen = run.started or run.given
        step = InstallStep.ATTEMPTED if run.started is None else InstallStep.STARTED
        until = run.given.at + SERVED_GRACE
        yield InstallProgress(InstallState.SERVED, run.given.at, step, seen.at, until, record.overwritten_by)


def _of_attempt(state: InstallState, attempt: InstallAttempt, until: datetime | None) -> InstallProgress:
    at = attempt.failed.at if attempt.failed is not None else attempt.last_seen.at
    return InstallProgress(state, attempt.boots[0].at, attempt.step, at, until)
