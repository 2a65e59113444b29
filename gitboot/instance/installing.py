"""What is known of an installation once one of its steps was seen; to see it twice is as once."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gitboot.controller.learn.install_boots import is_past
from gitboot.resolve.install_attempts import has_shown_all, image_reason, last_attempt
from gitboot.resolve.plan_at_time import is_made
from gitboot.resolve.provisioning_record_from_plan import Failure, InstallAttempt, Record, Seen, UnknownServe
from gitboot.resolve.server_plan import Offer

_MOST_OPEN: Final = 32  # intents of one server whose outcome is unknown: a client can ask all the time
_MORE: Final = "more"  # in place of the ids of all others: no line gives these back
_MOST_EARLY: Final = 32  # withheld intents of one server that have not come yet, and mostly never come


def perhaps_served(offer: Offer, record: Record, intent: str, seen: Seen) -> Record:
    """The record once an endpoint is about to serve an offer's boot; the same record if that is no news.

    It is no news of a boot that was made: if that proves to be another client's, its BMC rules this intent out as well.
    """
    known = next((each for each in record.unknown_serves if each.intent == intent), None)
    if known is not None and known.is_withheld:
        return _given_back(offer, record, intent, seen)
    if known is not None or is_past(offer, record) or _is_made(offer, record):
        return record
    count = sum(not each.is_withheld for each in record.unknown_serves)
    if count >= _MOST_OPEN:
        return record
    perhaps = UnknownServe(intent if count < _MOST_OPEN - 1 else _MORE, offer.key, seen)
    return replace(record, unknown_serves=(*record.unknown_serves, perhaps))


def withheld(offer: Offer, record: Record, intent: str, seen: Seen, *, is_early: bool) -> Record:
    """The record once an endpoint has sent nothing of an offer's boot; what it served for other intents stays.

    ``is_early``: the log has not shown the intent yet, as far as it was read.
    """
    known = next((each for each in record.unknown_serves if each.intent == intent), None)
    if known is not None and not known.is_withheld:
        return _given_back(offer, record, intent, seen)
    if known is not None or is_past(offer, record):
        return record
    if not is_early:
        return _given_back(offer, record, intent, seen)
    early = [each for each in record.unknown_serves if each.is_withheld and each.intent][1 - _MOST_EARLY :]
    others = (each for each in record.unknown_serves if not each.is_withheld or not each.intent)
    return replace(record, unknown_serves=(*others, *early, UnknownServe(intent, offer.key, seen, is_withheld=True)))


def _given_back(offer: Offer, record: Record, intent: str, seen: Seen) -> Record:
    """The record without an intent that was withheld; it keeps the newest request of such an intent, without its id."""
    others = tuple(each for each in record.unknown_serves if each.intent != intent)
    newest = next((each for each in others if not each.intent), None)
    if newest is None or newest.seen.at < seen.at:
        kept = UnknownServe("", offer.key, seen, is_withheld=True)
        others = (*(each for each in others if each.intent), kept)
    return replace(record, unknown_serves=others) if others != record.unknown_serves else record


def surely_served(offer: Offer, record: Record) -> Record:
    """The record once an endpoint has served an offer's boot: it does not matter any more what it served besides."""
    others = tuple(each for each in record.unknown_serves if each.key != offer.key)
    return replace(record, unknown_serves=others) if len(others) < len(record.unknown_serves) else record


def attempted(offer: Offer, record: Record, seen: Seen) -> Record:
    """The record once the boot of an offer was given; the same where that is no news."""
    last = _last(offer, record)
    if _is_over(offer, record) or (last is not None and _number(last) >= (offer.attempt, offer.boot)):
        return record
    if last is not None and last.number == offer.attempt:
        return _with(offer, record, replace(last, boots=(*last.boots, seen)))
    return _with(offer, record, InstallAttempt(key=_key(offer, record), number=offer.attempt, boots=(seen,)))


def started(offer: Offer, record: Record, seen: Seen) -> Record:
    """The record once the system that was booted has asked for its data; that its boot was given goes with it.

    From then on the boot is given to nobody more, where it was for a moment.
    """
    if offer.attempt == 0:  # data is asked for by the name of its attempt; the common one is of another by now
        return record
    if record.grace_until is not None and record.attempts and not is_past(offer, record):
        return replace(_with(offer, record, _begun(record.attempts[-1], seen)), grace_until=None)
    given = attempted(offer, record, seen)
    last = _last(offer, given)
    if last is None or last.failed is not None or last.number != offer.attempt or _is_over(offer, record):
        return record
    return record if last.runs else _with(offer, given, _begun(last, seen))


def _begun(attempt: InstallAttempt, seen: Seen) -> InstallAttempt:
    """With the start of the boot that was given last: of which one it is, the order tells in which they are seen."""
    return replace(attempt, started=seen, started_boot=len(attempt.boots))


def failed(offer: Offer, record: Record, failure: Failure) -> Record:
    """The record once an installer has said that it failed; one that was never given has nothing to say."""
    last = _last(offer, record)
    if last is None or last.failed is not None or _is_over(offer, record):
        return record
    if last.number != offer.attempt and (offer.attempt or failure.at < last.boots[0].at):
        return record  # news of the attempt before
    return _with(offer, record, replace(last, failed=failure))


def disk_booted(record: Record, seen: Seen) -> Record:
    """Return the record once the machine has fetched a boot of its disk after a served installation."""
    last = record.attempts[-1] if record.attempts else None
    since = record.provisioned_at
    if last is not None and last.disk_boot is None and since is not None and last.boots[-1].at <= since:
        record = replace(record, attempts=(*record.attempts[:-1], replace(last, disk_boot=seen)))
    name = record.overwritten_by or ""
    if (run := record.runs.get(name)) is not None and run.given is not None and run.disk_boot is None:
        record = replace(record, runs={**record.runs, name: run._replace(disk_boot=seen)})
    return record


def taken_back(record: Record, seen: Seen) -> Record:
    """The record once what was seen has proven to be of another client than the machine.

    A boot whose system has asked for its data since was made all the same, by whomever.
    """
    if not record.attempts:
        return record
    *before, last = record.attempts
    if last.runs and last.started is not None and not _is_same(last.started, seen):
        return record
    boots = last.boots[:-1] if _is_same(last.boots[-1], seen) else last.boots
    kept = None if last.started is not None and _is_same(last.started, seen) else last.started
    now = [replace(last, boots=boots, started=kept, started_boot=last.started_boot if kept else 0)] if boots else []
    return replace(record, attempts=(*before, *now))


def is_complete(offer: Offer, record: Record) -> bool:
    """Whether nothing more of an installation can be seen by what is fetched: its boots, and that it has started."""
    last = _last(offer, record)
    return last is not None and has_shown_all(last, boots=offer.boots, shows_start=offer.shows_start)


def _is_same(one: Seen, other: Seen) -> bool:
    return (one.path, one.client) == (other.path, other.client)


def _key(offer: Offer, record: Record) -> str:
    """The provision key that an offer counts for: where an earlier image was heard of since, it is of after that."""
    if offer.on_image_change and not is_past(offer, record):
        return image_reason(offer.provision, offer.image, record)
    return offer.base or offer.key


def _last(offer: Offer, record: Record) -> InstallAttempt | None:
    return last_attempt(record, _key(offer, record))


def _number(attempt: InstallAttempt) -> tuple[int, int]:
    return attempt.number, len(attempt.boots)


def _is_made(offer: Offer, record: Record) -> bool:
    """Whether it is known that the boot of an offer was made."""
    if offer.maintenance is not None and offer.run is not None:
        return is_made(record.runs.get(offer.maintenance), offer.run, offer.start)
    last = _last(offer, record)
    return _is_over(offer, record) or (last is not None and _number(last) >= (offer.attempt, offer.boot))


def _is_over(offer: Offer, record: Record) -> bool:
    """Whether an offer is older than what is known, or of what is provisioned."""
    if is_past(offer, record):
        return True
    reached = record.provision is not None and record.provision >= offer.provision
    return reached and (not offer.on_image_change or record.image == offer.image)


def _with(offer: Offer, record: Record, attempt: InstallAttempt) -> Record:
    """With an attempt in the place of the one of its number; those at other keys are of the past."""
    others = [each for each in record.attempts if each.key == attempt.key and each.number != attempt.number]
    attempts = tuple(sorted([*others, attempt], key=lambda each: each.number))
    return replace(record, attempts=attempts, answered=max(offer.number, record.answered))
