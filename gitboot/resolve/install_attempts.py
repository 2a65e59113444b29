"""Install attempts: determine the next boot of an installation, and describe the installation's progress."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from gitboot.jsonio import Digest, format_instant
from gitboot.model.boot_policy import NetworkBoot
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.provisioning_record import (
    ADOPTED,
    CONSUMED_GRACE,
    FETCH_GRACE,
    SERVED_GRACE,
    START_EVIDENCE,
    InstallAttempt,
    InstallStep,
    Record,
    Run,
    boot_key,
)
from gitboot.resolve.server_decision import Decision, PolicyDecision, offer_token
from gitboot.resolve.server_plan import InstallProgress, InstallState

_AFTER: Final = "/after/"
_NUMBER: Final = r"([0-9]{1,19})(?![0-9])"  # the ledger stores integers of at most 19 digits
# A provision key at the start of a boot key. An image can be named `attempt` or `boot`, too.
_BASE_KEY: Final = re.compile(rf"provision/{_NUMBER}(?:/(?!(?:attempt|boot)/[0-9])([^/]+)(?:/after/[^/]+)?)?")
# A provision key or a boot key. The second group is the key without its provision number.
_KEY: Final = re.compile(rf"provision/{_NUMBER}(/.*)?")
# The end of a boot key, after its provision key.
_ATTEMPT_AND_BOOT: Final = re.compile(rf"(?:/attempt/{_NUMBER})?(?:/boot/{_NUMBER})?")
HIGHEST_NEW_PROVISION: Final = 1  # another instance may have installed a new server with a higher number


def is_provisioned(policy: PolicyDecision, record: Record) -> bool:
    """Return whether the server was installed as the policy requires.

    Lowering the number in ``provision`` does not cause a reinstallation.
    """
    if record.provision is None or record.provision < policy.provision:
        return False
    if policy.network_boot is NetworkBoot.ON_IMAGE_CHANGE and policy.boot is not None:
        return record.image == policy.boot.image
    return True


def is_install_pending(decision: Decision, record: Record) -> bool:
    """Return whether the policy installs the server once, and this installation is not complete."""
    policy = decision.policy
    return policy is not None and decision.installation is not None and not is_provisioned(policy, record)


def is_overwritten(record: Record, provision: int) -> bool:
    """Return whether a maintenance overwrote a server that had been installed with at least this provision number."""
    return record.overwritten_by is not None and record.provision is not None and record.provision >= provision


def provision_key(policy: PolicyDecision, record: Record) -> str:
    """Return the key that identifies the installation that a policy requires.

    With OnImageChange, a policy may return to an earlier image. Therefore, the key contains the time of the last
    provisioning, so that gitboot ignores overrides and attempts from before that time. If a commit changes
    `networkBoot` during the installation, the key stays the same.
    """
    key = f"provision/{policy.provision}"
    if policy.network_boot is NetworkBoot.ON_IMAGE_CHANGE and policy.boot is not None:
        key = image_provision_key(policy.provision, policy.boot.image, record)
    return find_begun_key(key, record)


def image_provision_key(provision: int, image: str, record: Record) -> str:
    """Return the key that identifies the next installation of an image after the last installation in the record."""
    since = f"{_AFTER}{format_instant(record.provisioned_at)}" if record.provisioned_at is not None else ""
    return f"provision/{provision}/{image}{since}"


def find_begun_key(key: str, record: Record) -> str:
    """Return the key under which the installation that ``key`` requires began, or ``key`` if no boot was served.

    The two keys differ if a commit changed `networkBoot` since then. A consumed override counts first, unless the
    attempts contain its boot, because an attempt with another key would have removed it from the record. Earlier
    versions did not remove it, so a consumed override that is older than the last boot counts last.
    """
    # pairs of a recorded key and its image; None: the image is unknown
    begun: list[tuple[str, str | None]] = [
        (attempt.key, find_attempt_image(attempt)) for attempt in reversed(record.attempts)
    ]
    begun += [(serve.key, None) for serve in record.unknown_serves if not serve.is_withheld]
    if record.consumed_key is not None and record.consumed_key not in _list_boot_keys(record):
        last_boot = record.attempts[-1].boots[-1] if record.attempts else None
        consumed_at = record.consumed_at
        if last_boot is not None and consumed_at is not None and consumed_at + CONSUMED_GRACE < last_boot.at:
            begun.append((record.consumed_key, None))
        else:
            begun.insert(0, (record.consumed_key, None))
    for recorded_key, image in begun:
        match = _BASE_KEY.match(recorded_key)
        if match is None:
            continue
        if satisfies_key(match[0], key):
            return key
        if has_other_mode(match[0], key, record, image):
            return match[0]
    return key


def find_attempt_image(attempt: InstallAttempt) -> str | None:
    """Return the image that an attempt fetched last, or None if it is unknown.

    Earlier versions recorded the image only in the keys of OnImageChange.
    """
    match = _BASE_KEY.match(attempt.key)
    return attempt.image or (match[2] if match is not None else None)


def has_other_mode(recorded_key: str, key: str, record: Record, image: str | None = None) -> bool:
    """Return whether a recorded key belongs to the installation that ``key`` requires, but with another `networkBoot`.

    Both keys then belong to the first installation with a provision number, which has not ended. ``image`` is the image
    of the recorded boot, or None if it is unknown.
    """
    recorded, required = _BASE_KEY.match(recorded_key), _BASE_KEY.match(key)
    if recorded is None or required is None or (recorded[2] is None) == (required[2] is None):
        return False
    number = int(recorded[1])
    is_unfinished = number >= int(required[1]) and (record.provision is None or number > record.provision)
    return is_unfinished and (image is None or required[2] in (None, image))


def may_have_booted(override_key: str, set_at: datetime, record: Record) -> bool:
    """Return whether a machine may have booted an unfinished installation with an override that is gone.

    If the record contains this boot, or a later boot with at least this provision number, the recorded attempts
    determine what gitboot installs. The result is then False. ``set_at`` is the time when gitboot set the override.
    """
    number = parse_provision(override_key)
    if number is None or (record.provision is not None and number <= record.provision):
        return False
    last = record.attempts[-1] if record.attempts else None
    is_followed = last is not None and last.boots[-1].at >= set_at and (parse_provision(last.key) or 0) >= number
    return not (is_followed or override_key in _list_boot_keys(record))


def _list_boot_keys(record: Record) -> set[str]:
    """Return the keys of all boots in the recorded attempts."""
    return {
        boot_key(attempt.key, attempt.number, boot)
        for attempt in record.attempts
        for boot in range(1, len(attempt.boots) + 1)
    }


def parse_provision(key: str) -> int | None:
    """Parse a provision key or boot key, and return its provision number, or None if it is another kind of key."""
    match = _KEY.fullmatch(key)
    return int(match[1]) if match is not None else None


def satisfies_key(recorded_key: str | None, required_key: str) -> bool:
    """Return whether a recorded provision key satisfies the required key, so that no installation is necessary.

    A recorded number that is higher than the required number also satisfies the required key.
    """
    if recorded_key is None or not (recorded := _KEY.fullmatch(recorded_key)):
        return False
    required = _KEY.fullmatch(required_key)
    return required is not None and int(recorded[1]) >= int(required[1]) and recorded[2] == required[2]


def parse_attempt_and_boot(base_key: str, key: str) -> tuple[int, int]:
    """Parse a boot key, and return the number of the attempt and the number of the boot within the attempt.

    Both numbers begin at 1. ``base_key`` is the provision key at the start of the boot key.
    """
    match = _ATTEMPT_AND_BOOT.fullmatch(key.removeprefix(base_key))
    return (int(match[1] or 1), int(match[2] or 1)) if match is not None else (1, 1)


def last_attempt(record: Record, key: str) -> InstallAttempt | None:
    """Return the last attempt whose provision key satisfies the required ``key``, or None."""
    return next((each for each in reversed(record.attempts) if satisfies_key(each.key, key)), None)


def unfinished_later_attempt(record: Record) -> InstallAttempt | None:
    """Return an unfinished attempt that began after the last provisioning, to install another image or a higher number.

    Return None if there is no such attempt. Such an attempt exists if somebody reverts a commit while the installation
    that the commit requires is in progress.
    """
    last = record.attempts[-1] if record.attempts else None
    if last is None or record.provision is None or (match := _KEY.fullmatch(last.key)) is None:
        return None
    if record.provisioned_at is not None and last.boots[-1].at <= record.provisioned_at:
        return None
    image = (match[2] or "").removeprefix("/").partition("/")[0]
    return last if int(match[1]) > record.provision or image not in ("", record.image) else None


def highest_served_provision(record: Record, override_keys: Iterable[str] = ()) -> int | None:
    """Return the highest provision number for which a boot may have been served or an override was consumed.

    Return None if there is no such number. ``override_keys`` are the keys of other overrides that may be consumed.
    """
    keys = [attempt.key for attempt in record.attempts]
    keys += [serve.key for serve in record.unknown_serves if not serve.is_withheld]
    if record.consumed_key is not None:
        keys.append(record.consumed_key)
    keys += override_keys
    return max((number for number in map(parse_provision, keys) if number is not None), default=None)


def is_lowered(attempt: InstallAttempt, policy: PolicyDecision) -> bool:
    """Return whether a commit lowered the provision number after an attempt had begun."""
    number = parse_provision(attempt.key)
    return number is not None and number > policy.provision


def has_wanted_image(attempt: InstallAttempt, policy: PolicyDecision) -> bool:
    """Return whether an attempt installs the image that the policy boots now."""
    return policy.boot is None or find_attempt_image(attempt) in (None, policy.boot.image)


def next_attempt_and_boot(policy: PolicyDecision, record: Record) -> tuple[int, int] | None:
    """Return the number of the next attempt and the number of its next boot. Both numbers start at 1.

    Return None if an operator must check the machine first. After the installer has reported a failure, gitboot makes
    another attempt if the Fleet allows more attempts. Without a report, the installer may have written the disks, so an
    operator must check the machine. An operator must also check the machine if a commit lowered the provision number,
    or changed the image during the attempt.
    """
    last = last_attempt(record, provision_key(policy, record))
    if last is None:
        return 1, 1
    if is_lowered(last, policy):
        return None
    if last.failed is not None:
        return (last.number + 1, 1) if last.number < policy.attempts else None
    if not has_wanted_image(last, policy):
        return None
    boots = policy.boot.boots if policy.boot is not None else 1
    return (last.number, len(last.boots) + 1) if len(last.boots) < boots else None


def next_boot_key(policy: PolicyDecision, record: Record) -> str:
    """Return the boot key of the next boot. If no further boot is allowed, return the key of the last boot."""
    key, next_numbers = provision_key(policy, record), next_attempt_and_boot(policy, record)
    if next_numbers is not None:
        attempt, boot = next_numbers
        return boot_key(key, attempt, boot)
    last = last_attempt(record, key)
    return boot_key(key, last.number, len(last.boots)) if last is not None else boot_key(key, 1, 1)


def _find_newest_attempt(policy: PolicyDecision, record: Record) -> InstallAttempt | None:
    """Return the last attempt with the policy's provision key.

    If the server is provisioned, return the last attempt with any key.
    """
    if is_provisioned(policy, record):
        return record.attempts[-1] if record.attempts else None
    return last_attempt(record, provision_key(policy, record))


def attempt_token(decision: Decision, record: Record | None) -> Digest | None:
    """Return the token with which the next or the last attempt fetches user data and reports its end.

    The first attempt uses the token of the decision. Return None if the policy does not install the server once.
    """
    common_token, policy = decision.token, decision.policy
    if common_token is None or policy is None or policy.boot is None or record is None:
        return common_token
    last = _find_newest_attempt(policy, record)
    key, number = (last.key, last.number) if last is not None else (provision_key(policy, record), 1)
    if not is_provisioned(policy, record) and (next_numbers := next_attempt_and_boot(policy, record)) is not None:
        number, _ = next_numbers
    if record.offered == 0 and number == 1 and _AFTER not in key:
        return common_token
    return offer_token(decision.uuid, key, str(number), policy.boot.image, str(record.offered))


def find_unstarted_run(decision: Decision, name: str | None, record: Record | None) -> Run | None:
    """Return the last run of a maintenance if its boot was served, but the system has not fetched user data yet."""
    maintenance = next((each for each in decision.maintenances if each.name == name), None)
    if maintenance is None or maintenance.boot is None or record is None or not maintenance.boot.proves_start:
        return None
    last_run = record.runs.get(maintenance.name)
    if last_run is None or last_run.run < maintenance.run or last_run.given is None or last_run.started is not None:
        return None
    return last_run


def install_step(decision: Decision, record: Record | None) -> InstallStep:
    """Return the current step of the installation that the policy requires.

    If the policy does not require an installation, return Provisioned if the server was ever provisioned, and Pending
    otherwise.
    """
    if record is None or is_overwritten(record, decision.provision):
        return InstallStep.UNKNOWN
    policy = decision.policy
    if policy is None or decision.installation is None:
        return InstallStep.PENDING if record.provision is None else InstallStep.PROVISIONED
    if is_provisioned(policy, record):
        later_attempt = unfinished_later_attempt(record)
        return later_attempt.step if later_attempt is not None else InstallStep.PROVISIONED
    last = last_attempt(record, provision_key(policy, record))
    if last is None or (last.failed is not None and next_attempt_and_boot(policy, record) is not None):
        return InstallStep.PENDING
    return last.step


def find_open_attempt(decision: Decision, record: Record | None) -> InstallAttempt | None:
    """Return the attempt that has not finished, or that has failed without another attempt being allowed.

    Return None if there is no such attempt. The policy may no longer require the installation to which the attempt
    belongs.
    """
    if (
        record is None
        or decision.policy is None
        or install_step(decision, record) not in (InstallStep.ATTEMPTED, InstallStep.STARTED, InstallStep.FAILED)
    ):
        return None
    if is_provisioned(decision.policy, record):
        return unfinished_later_attempt(record)
    return last_attempt(record, provision_key(decision.policy, record))


def has_all_evidence(attempt: InstallAttempt, *, boots: int, shows_start: bool) -> bool:
    """Return whether fetches prove that all boots of an attempt were served and that the booted system started."""
    if attempt.failed is not None or len(attempt.boots) < boots:
        return False
    return attempt.started is not None or not shows_start


def describe_evidence(decision: Decision, record: Record | None) -> str | None:
    """Describe the evidence for the current step of the installation that the policy requires.

    Return None if there is no evidence.
    """
    if record is None or decision.policy is None or decision.installation is None:
        return None
    last = _find_newest_attempt(decision.policy, record)
    if last is None:
        return None
    return f"attempt {last.number}, boot {len(last.boots)}: {last.failed or last.last_seen}"


def describe_run_evidence(decision: Decision, name: str | None, record: Record | None) -> tuple[int, str] | None:
    """Return the number of a maintenance's last run and a description of its evidence, or None if there is none."""
    last_run = record.runs.get(name) if record is not None and name is not None else None
    if last_run is None or last_run.given is None:
        return None
    if last_run.started is not None:
        return last_run.run, f"started: {last_run.started}"
    state = "served" if find_unstarted_run(decision, name, record) is not None else "consumed"
    return last_run.run, f"{state}: {last_run.given}"


def make_first_records(
    decisions: Iterable[Decision], known_records: Mapping[SystemUuid, Record], *, adopt_all: bool
) -> list[tuple[SystemUuid, str, Record]]:
    """Return the UUID, the name and a first record of each server that has no record yet.

    gitboot adopts a server with provision number 0, which means that it records the server as provisioned and does not
    install it. A server with a higher number is pending. With ``adopt_all``, gitboot adopts every server.
    """
    first_records = []
    for decision in decisions:
        if decision.uuid not in known_records:
            is_adopted = adopt_all or decision.provision == 0
            record = make_adopted_record(decision) if is_adopted else Record()
            first_records.append((decision.uuid, decision.server, record))
    return first_records


def make_adopted_record(decision: Decision, at: datetime | None = None) -> Record:
    """Return a record which states that the server is installed as its decision requires.

    With ``at``, treat the runs of maintenances that began before this time as consumed, so that gitboot does not serve
    them again. Earlier fetches are not evidence.
    """
    policy, runs = decision.policy, dict[str, Run]()
    if at is not None:
        for maintenance in decision.maintenances:
            if maintenance.start is None or maintenance.start <= at:
                runs[maintenance.name] = Run(maintenance.run, at - FETCH_GRACE, maintenance.end)
    return Record(
        provision=decision.provision,
        image=policy.boot.image if policy and policy.boot else None,
        pool=policy.policy if policy else None,
        decision=decision.digest,
        evidence=ADOPTED,
        provisioned_at=at,
        runs=runs,
    )


def add_consumed_run(record: Record, maintenance: str, run: Run, *, once: bool, overwrites_disk: bool) -> Record:
    """Return the record with a consumed run. After an install boot, gitboot does not know the content of the disks."""
    return replace(
        record,
        runs={**record.runs, maintenance: run} if once else record.runs,
        overwritten_by=maintenance if overwrites_disk else record.overwritten_by,
    )


class UnrecordedState(StrEnum):
    """The ways in which gitboot can treat a server without a record."""

    NEW = "new"  # gitboot adopts the server if provision is 0; otherwise the server is pending
    PENDING = "pending"
    UNKNOWN = "unknown"  # gitboot does not install the server


class UnrecordedServer(Struct, frozen=True, kw_only=True):
    """How gitboot treats a server without a record, and why."""

    state: UnrecordedState
    why: str
    # consumed runs of the machine before its board was replaced, by maintenance
    runs: Mapping[str, Run] = field(default_factory=dict)

    def record(self, decision: Decision) -> Record | None:
        """Return the server's first record, or None if the server gets no record and boots from its disk."""
        if self.state is UnrecordedState.NEW and decision.provision == 0:
            return make_adopted_record(decision)
        return Record(runs=self.runs) if self.state is not UnrecordedState.UNKNOWN else None


def classify_unrecorded_server(
    decision: Decision,
    *,
    records: Mapping[SystemUuid, Record],
    seen_machines: Collection[SystemUuid],
    first_provision: int | None,
    shared_identity: str | None = None,
    served_before: int | None = None,
) -> UnrecordedServer:
    """Determine how to treat a server without a record.

    - ``seen_machines`` are all machines that the ledger has ever seen, except those that the commit declares to have a
      new board.
    - ``first_provision`` is the server's provision number in the first commit after the accepted one that contains the
      server (`gitboot.review.commit_path.find_first_provisions`), or None if the accepted commit contains it.
    - ``shared_identity`` names an identity and the other machine that has the same identity, for example because the
      board was replaced.
    - ``served_before`` is the highest provision number with which the machine may have booted with an earlier board,
      or None.
    """
    if decision.replaces is not None and decision.uuid not in seen_machines:
        return _classify_replacement(decision, decision.replaces, records.get(decision.replaces), served_before)
    if shared_identity is not None:
        reason = (
            f"the server shares {shared_identity}; if the server has a new motherboard, set `replaces` to the old "
            "motherboard's UUID"
        )
    elif decision.uuid in seen_machines:
        reason = "the machine is in the ledger, but has no provisioning record"
    elif first_provision is None:
        reason = "the accepted commit contains the server, but the ledger has no record of the server"
    elif first_provision > HIGHEST_NEW_PROVISION:
        reason = f"a new server with provision {first_provision} may have been installed elsewhere"
    else:
        return UnrecordedServer(state=UnrecordedState.NEW, why=f"the server is new and has provision {first_provision}")
    return UnrecordedServer(state=UnrecordedState.UNKNOWN, why=reason)


def _classify_replacement(
    decision: Decision, replaced: SystemUuid, old_record: Record | None, served_before: int | None
) -> UnrecordedServer:
    """Determine how to treat a server without a record that replaces the machine ``replaced``."""
    if old_record is None:
        why = f"the server replaces {replaced}, which has no provisioning record"
        return UnrecordedServer(state=UnrecordedState.UNKNOWN, why=why)
    served = highest_served_provision(old_record)
    numbers = [number for number in (old_record.provision, served, served_before) if number is not None]
    highest = max(numbers, default=0)
    why = f"the server replaces {replaced}, which has not been provisioned yet"
    if numbers:
        outcome = "was provisioned" if old_record.provision == highest else "may have booted"
        why = f"the server replaces {replaced}, which {outcome} with provision number {highest}"
    if decision.provision > highest:
        return UnrecordedServer(state=UnrecordedState.PENDING, why=why, runs=old_record.runs)
    return UnrecordedServer(state=UnrecordedState.UNKNOWN, why=f"{why}, and the new provision number is not higher")


def install_progress(record: Record | None, at: datetime) -> InstallProgress | None:
    """Return the progress of a server's installation at the time ``at``, or None if no installation is in progress.

    An attempt is in progress from its first fetch until evidence proves its completion, even if the newest commit
    requires another installation. If the only evidence is a fetch or a consumed override, or if a maintenance wrote the
    disks, the installation is in the state Served until the machine boots from its disk, but for no longer than
    `SERVED_GRACE`.
    """
    if record is None:
        return None
    last = record.attempts[-1] if record.attempts else None
    if record.provision is not None:
        last = unfinished_later_attempt(record)
    elif last is not None and record.provisioned_at is not None and last.boots[-1].at <= record.provisioned_at:
        last = None  # an operator made the server pending with `gitboot records set` after this attempt
    if last is not None:
        return _make_attempt_progress(InstallState.INSTALLING, last, None)
    served_installations = [
        progress
        for progress in _find_served_installations(record)
        if progress.until is not None and progress.at <= at < progress.until
    ]
    return max(served_installations, key=lambda progress: progress.at, default=None)


def disk_boot_token(uuid: SystemUuid, progress: InstallProgress | None) -> Digest | None:
    """Return the token that identifies the disk boot that follows a served installation.

    Return None if gitboot does not expect a disk boot.
    """
    if progress is None or progress.state is not InstallState.SERVED:
        return None
    return offer_token(uuid, "disk", format_instant(progress.since), format_instant(progress.at))


def _find_served_installations(record: Record) -> Iterator[InstallProgress]:
    """Yield the served installations that have no completion report and no later disk boot."""
    last = record.attempts[-1] if record.attempts else None
    if record.evidence in START_EVIDENCE and record.provisioned_at is not None:
        until = record.provisioned_at + SERVED_GRACE
        if last is None:
            yield InstallProgress(
                InstallState.SERVED, record.provisioned_at, InstallStep.ATTEMPTED, record.provisioned_at, until
            )
        elif last.disk_boot is None:
            yield _make_attempt_progress(InstallState.SERVED, last, until)
    run = record.runs.get(record.overwritten_by or "")
    if run is not None and run.given is not None and run.disk_boot is None:
        seen = run.started or run.given
        step = InstallStep.ATTEMPTED if run.started is None else InstallStep.STARTED
        until = run.given.at + SERVED_GRACE
        yield InstallProgress(InstallState.SERVED, run.given.at, step, seen.at, until, record.overwritten_by)


def _make_attempt_progress(state: InstallState, attempt: InstallAttempt, until: datetime | None) -> InstallProgress:
    at = attempt.failed.at if attempt.failed is not None else attempt.last_seen.at
    return InstallProgress(state, attempt.boots[0].at, attempt.step, at, until)
