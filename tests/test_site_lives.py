"""Lives of a site: clocks, restored backups, lost trees, proxies and kills, and nothing is installed twice.

``pytest tests/test_site_lives.py --lives 500`` searches for long.
"""

from __future__ import annotations

import logging
from collections import Counter
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.site_lives import LOOKUPS, Site

_log = logging.getLogger(__name__)  # figures of a long run: --log-level=info -rP

SECONDS = st.sampled_from([1, 5, 31, 61, 301, 3601, 7300])
PATHS = st.sampled_from(LOOKUPS)


class SiteLives(RuleBasedStateMachine):
    folder: Path
    totals: Counter[str]

    @initialize()
    def begin(self) -> None:
        self.site = Site(Path(mkdtemp(dir=self.folder)))

    def teardown(self) -> None:
        """However it went: in the end, left alone, all is in order."""
        if hasattr(self, "site"):
            try:
                if not self.site.violations:
                    self.site.calm_down()
                    self.all_is_well()
            finally:
                self.site.close()
                self.totals.update(self.site.counts)

    # Commits

    @rule(passes=st.sampled_from([0, 1, 1]))
    def an_installation_is_asked_for(self, passes: int) -> None:
        self.site.push(provision=self.site.provision + 1)
        for _ in range(passes):
            self.site.reconcile()

    @rule(begins=st.sampled_from([-60, 0, 30, 600]), lasts=SECONDS, passes=st.sampled_from([0, 1, 1]))
    def a_maintenance_is_written(self, begins: int, lasts: int, passes: int) -> None:
        start = (self.site.now + timedelta(seconds=begins)).replace(microsecond=0)
        self.site.push(window=(start, start + timedelta(seconds=lasts)))
        for _ in range(passes):
            self.site.reconcile()

    @rule()
    def two_commits_come_together(self) -> None:
        """Both are merged before the instance looks."""
        self.site.push(provision=self.site.provision + 1)
        self.site.push(window=None)
        self.site.reconcile()

    # Time

    @rule(seconds=SECONDS, passes=st.sampled_from([0, 1, 1]))
    def time_passes(self, seconds: int, passes: int) -> None:
        self.site.now += timedelta(seconds=seconds)
        for _ in range(passes):
            self.site.reconcile()

    @rule(seconds=st.sampled_from([-7200, -180, -45, 45, 180, 7200, 0, 0]))
    def the_clock_is_moved(self, seconds: int) -> None:
        self.site.skew = timedelta(seconds=seconds)

    # Machines and others

    @rule(path=PATHS, goes_on=st.booleans())
    def the_machine_boots(self, path: str, goes_on: bool) -> None:
        self.site.boot(path, goes_on=goes_on)

    @rule(paths=st.tuples(PATHS, PATHS), seconds=SECONDS, goes_on=st.booleans(), passes=st.sampled_from([0, 0, 1]))
    def the_machine_boots_again(self, paths: tuple[str, str], seconds: int, goes_on: bool, passes: int) -> None:
        self.site.boot(paths[0], goes_on=goes_on)
        self.time_passes(seconds, passes)
        self.site.boot(paths[1], goes_on=goes_on)

    @rule(path=PATHS, goes_on=st.booleans())
    def the_machine_boots_through_a_proxy(self, path: str, goes_on: bool) -> None:
        self.site.boot_through_proxy(path, goes_on=goes_on)

    @rule(path=PATHS, method=st.sampled_from(["GET", "HEAD"]))
    def a_monitor_looks(self, path: str, method: str) -> None:
        self.site.fetch(path, "10.9.0.5", "check_http/2.3", method=method)

    # Processes

    @rule()
    def it_reconciles(self) -> None:
        self.site.reconcile()

    @rule()
    def the_instance_is_restarted(self) -> None:
        self.site.stop_instance()
        self.site.start_instance()

    @rule()
    def the_instance_is_gone(self) -> None:
        self.site.stop_instance()

    @rule()
    def the_instance_comes_back(self) -> None:
        if self.site.instance is None:
            self.site.start_instance()
            self.site.reconcile()

    @rule(when=st.sampled_from(["before", "after"]))
    def the_endpoint_dies_as_it_records(self, when: str) -> None:
        if self.site.recording is not None:
            self.site.recording.dies = when
            self.site.boot(LOOKUPS[0], goes_on=True)
            self.site.start_endpoint()
            self.site.boot(LOOKUPS[0], goes_on=True)

    @rule(path=PATHS)
    def the_endpoint_is_restarted(self, path: str) -> None:
        self.site.start_endpoint()
        self.site.boot(path, goes_on=True)

    # Disasters

    @rule()
    def a_backup_is_made(self) -> None:
        if len(self.site.backups) < 2 and (self.site.folder / "output").exists():
            self.site.back_up()

    @rule(which=st.sampled_from([0, -1]), what=st.sampled_from([("state",), ("output",), ("state", "output")]))
    def a_backup_is_put_back(self, which: int, what: tuple[str, ...]) -> None:
        if self.site.backups:
            self.site.restore(self.site.backups[which], what)
            self.site.start_instance()
            self.site.start_endpoint()
            self.site.reconcile()
            self.site.boot(LOOKUPS[0], goes_on=True)

    @rule(passes=st.sampled_from([0, 1]))
    def the_tree_is_lost(self, passes: int) -> None:
        self.site.lose_output()
        self.site.start_instance()
        self.site.start_endpoint()
        for _ in range(passes):
            self.site.reconcile()
        self.site.boot(LOOKUPS[0], goes_on=True)

    # Operators

    @rule()
    def an_operator_wants_it_installed_again(self) -> None:
        self.site.is_pending()
        self.site.reconcile()

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "site"):
            assert not self.site.violations, "\n".join(self.site.violations)


def test_no_life_of_a_site_installs_a_machine_twice(
    tmp_path: Path, lives: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fdatasync", lambda _: None)  # no power cut is tested
    monkeypatch.setattr("os.fsync", lambda _: None)
    totals: Counter[str] = Counter()
    run_state_machine_as_test(
        type("LivesOf", (SiteLives,), {"folder": tmp_path, "totals": totals}),
        settings=settings(
            max_examples=lives, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    _log.info("%d lives: %s", lives, dict(sorted(totals.items())))
