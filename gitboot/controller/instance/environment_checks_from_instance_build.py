"""gitboot.controller.instance.environment_checks_from_instance_build."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from gitboot.controller.instance import state_directory as state
from gitboot.controller.instance.assembly import Instance, Outside, assembled, keys_of, looking, opened_ledger
from gitboot.controller.instance.git_source import _KEYS, BranchInLedger, fetched_apart, look_for_repository, trust_of
from gitboot.controller.instance.settings import Settings
from gitboot.controller.instance.settings_from_instance_build import Clock, Tell
from gitboot.evaluator.client import Evaluation
from gitboot.fetchlog.spool import IDENTITY
from gitboot.git.clone import Source
from gitboot.ledger import instance_tables
from gitboot.ledger.open_ledger import copy_ledger
from gitboot.publish.look import Looked


@contextmanager
def tried_out(settings: Settings, *, tell: Tell, clock: Clock) -> Iterator[tuple[Instance, Source, Looked]]:
    """An instance over a copy of the state, with a target and BMCs that are only looked at."""
    look_for_repository(settings)
    with ExitStack() as stack:
        copy = Path(stack.enter_context(TemporaryDirectory(prefix="gitboot-dry-run-")))
        if state.has_ledger(settings.state):
            in_use = state.running(settings.state) is not None
            copy_ledger(settings.state / state.LEDGER, copy / state.LEDGER, in_use=in_use)
        store, read = stack.enter_context(opened_ledger(copy / state.LEDGER, tell, clock))
        has_keys = (settings.state / state.TOKEN_KEYS).exists()  # they are read then, and none is made
        keys = keys_of(settings.state if has_keys else copy, store, tell, clock)
        with store.writing() as tx:
            instance_tables.lapse(tx)  # it is not in the copy's clone
        about = instance_tables.read(store)
        cache = stack.enter_context(state.open_cache(settings.state, lambda _: None, writes=False))
        looked = Looked(settings.output, ledger=about.identity, heir_of=about.heir_of)
        source = stack.enter_context(fetched_apart(settings, copy, BranchInLedger(store, tell, clock)))
        evaluation = Evaluation(copy, allowance=settings.allowance, waits=True, site=settings.site)
        stack.callback(evaluation.close)
        outside = Outside(
            source=source,
            evaluation=evaluation,
            target=looked,
            artifacts=stack.enter_context(looking(settings, store, cache, lambda: None)),
            observes=settings.observes,
            keys=keys,
            trust=trust_of(settings.trust, source, copy / _KEYS),
        )
        settings = replace(settings, spool=_named_as(settings.spool_folder, copy / "spool"))
        instance = stack.enter_context(
            assembled(settings, store, outside, tell=tell, clock=clock, dry_run=True, read=read)
        )
        yield instance, source, looked


def _named_as(spool: Path | None, empty: Path) -> Path | None:
    """An empty spool that is called as another is: what lies there is for the instance itself."""
    if spool is None or not (spool / IDENTITY).exists():
        return None
    empty.mkdir()
    shutil.copyfile(spool / IDENTITY, empty / IDENTITY)
    return empty
