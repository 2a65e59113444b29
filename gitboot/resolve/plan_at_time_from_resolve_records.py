"""gitboot.resolve.plan_at_time_from_resolve_records."""

from __future__ import annotations

from dataclasses import replace

from gitboot.resolve.plan_at_time import has_run
from gitboot.resolve.provisioning_record_from_plan import Record
from gitboot.resolve.server_decision_from_plan import Decision


def carried(record: Record, decision: Decision) -> Record:
    """The record once a commit moved the windows in which runs were made: a run lasts as long as its window does.

    So a window that was lengthened and then shortened from the front asks for no second run.
    """
    runs = dict(record.runs)
    for each in decision.maintenances:
        made = runs.get(each.name)
        if made is not None and made.end is not None and has_run(each, record):
            runs[each.name] = made._replace(end=max(made.end, each.end) if each.end is not None else None)
    return replace(record, runs=runs) if runs != record.runs else record
