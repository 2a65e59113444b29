"""Lives of a machine: in any order of events, nothing is installed twice and nothing is left behind.

``pytest tests/scenarios/test_machine_lives.py --lives 500`` runs a long search.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from gitboot.model.scalars import SystemUuid
from gitboot.resolve.provisioning_record import Record, make_record_fields
from tests.helpers.bmcs import RESCUE, WatchedMachine
from tests.helpers.cases import USUAL_LIVES
from tests.helpers.fleets import store_credentials
from tests.helpers.machine_lives import MONITOR, STRANGER, BootMethod, Life, Repair
from tests.helpers.redfish_double.profiles import (
    AMI,
    ENABLED,
    GENERIC,
    HTTP_BOOT_URI,
    IDRAC9,
    IDRAC10,
    ILO6,
    OPENBMC,
    SUPERMICRO_X10,
    SUPERMICRO_X11,
    TARGET,
    XCC,
    Profile,
)
from tests.helpers.redfish_double.server import (
    Body,
    Drop,
    Fault,
    Ignored,
    Intrusion,
    RedfishServer,
    Reverted,
    Service,
    Status,
    Truncated,
)

_log = logging.getLogger(__name__)  # figures of a long run: --log-level=info -rP

WRITTEN = (
    {ENABLED: "Disabled", TARGET: "None"},
    {ENABLED: "Once", TARGET: "Hdd"},
    {ENABLED: "Once", TARGET: "Pxe", HTTP_BOOT_URI: None},
    {ENABLED: "Continuous", TARGET: "Pxe"},
)
GETS: tuple[Fault, ...] = (
    Drop(applied=False),
    Status(status=401),
    Status(status=503, headers={"Retry-After": "30"}),
    Body(),
    Truncated(),
)
PATCHES: tuple[Fault, ...] = (
    Drop(applied=False),
    Drop(applied=True),
    *(Status(status=status) for status in (400, 401, 409, 412, 500, 503)),
    Body(),
    Truncated(),
    Ignored(),
    Reverted(),
    *(Intrusion(boot=boot) for boot in WRITTEN),
)
SECONDS = st.sampled_from([1, 6, 11, 31, 61, 301, 1801, 3601, 7300])
BY_MEDIA = (BootMethod.MEDIUM, BootMethod.MEDIA)
MACHINES = st.sampled_from(["a", "a", "a", "b"])


class Lives(RuleBasedStateMachine):
    bmcs: dict[str, RedfishServer]
    folder: Path
    profile: Profile
    way: BootMethod
    totals: Counter[str]

    @initialize(
        netboots=st.booleans(),
        delays=st.booleans(),
        often=st.sampled_from(["Once", "Once", "OnImageChange", "Always", "Never"]),
        provision=st.sampled_from([0, 1, 1]),
    )
    def begin(self, often: str, provision: int, netboots: bool, delays: bool) -> None:
        folder = Path(mkdtemp(dir=self.folder))
        store_credentials(folder, password="secret")
        self.life = Life(folder=folder, bmcs=self.bmcs, profile=self.profile, way=self.way)
        self.life.netboots, self.life.delays = netboots, delays
        self.life.push(often=often, provision=provision)
        self.life.reconcile()

    def teardown(self) -> None:
        """However it went: in the end, left alone, all is in order."""
        if hasattr(self, "life"):
            try:
                if not self.life.violations:
                    self.all_calms_down()
                    self.all_is_well()
            finally:
                self.life.close()
                self.totals.update(self.life.counts)

    def machine(self, name: str) -> WatchedMachine:
        return self.life.own if name == "a" else self.life.other

    # Commits

    @rule(
        often=st.sampled_from(["Once", "OnImageChange"]),
        image=st.sampled_from([1, 2]),
        passes=st.sampled_from([0, 1, 1]),
    )
    def an_installation_is_asked_for(self, often: str, image: int, passes: int) -> None:
        commit = {"often": often, "image": image, "here": True, "lifecycle": "Active", "bmc": "a", "override": None}
        self.life.push(provision=self.life.commit.provision + 1, repair=None, **commit)
        for _ in range(passes):
            self.life.reconcile()

    @rule(
        change=st.sampled_from(
            [
                {"lifecycle": "Parked"},
                {"lifecycle": "Active"},
                {"lifecycle": "Active", "here": True},
                {"here": False},
                {"name": "web02"},
                {"name": "web01"},
                {"board": 1},
                {"board": 0},
                {"bmc": "a"},
                {"bmc": "a"},
                {"bmc": "a2"},
                {"bmc": "b"},
                {"bmc": None},
                *({"provision": number} for number in range(4)),
                *({"often": often} for often in ("Once", "OnImageChange", "Always", "Never")),
                *({"image": image} for image in (1, 2)),
                *({"override": override} for override in (None, "Once", "None", "Continuous")),
            ]
        )
    )
    def a_commit_changes_something(self, change: dict[str, Any]) -> None:
        if self.way is not BootMethod.ENTRY and change.get("override") == "Continuous":
            change = {"override": None}  # the other is an invalid commit
        self.life.push(**change)

    @rule(often=st.sampled_from(["Once", "Always"]), begins=st.sampled_from([-60, 0, 30, 600]), lasts=SECONDS)
    def a_maintenance_is_written(self, often: str, begins: int, lasts: int) -> None:
        start = (self.life.now + timedelta(seconds=begins)).replace(microsecond=0)
        run = self.life.commit.repair.run if self.life.commit.repair is not None else 1
        self.life.push(repair=Repair(start=start, end=start + timedelta(seconds=lasts), often=often, run=run))

    @rule(run=st.sampled_from([None, 1, 2, 3]))
    def a_maintenance_is_run_again_or_removed(self, run: int | None) -> None:
        if (repair := self.life.commit.repair) is not None:
            again = Repair(start=repair.start, end=repair.end, often=repair.often, run=run) if run else None
            self.life.push(repair=again)

    # Machines

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: int) -> None:
        self.life.wait(seconds)

    @rule(name=MACHINES, kind=st.sampled_from(["ForceRestart", "ForceRestart", "ForceOff", "On"]), seconds=SECONDS)
    def a_machine_resets(self, name: str, kind: str, seconds: int) -> None:
        self.machine(name).reset(kind)
        self.life.wait(seconds)

    @rule(told=st.booleans())
    def the_machine_boots(self, told: bool) -> None:
        self.life.own.reset("ForceRestart")
        self.life.wait(130)
        if told:
            self.life.reconcile()

    @rule()
    def the_machine_boots_again(self) -> None:
        self.the_machine_boots(told=False)

    @rule(client=st.sampled_from([MONITOR, STRANGER]))
    def somebody_else_fetches_its_entry(self, client: str) -> None:
        self.life.fetch(client)

    @rule()
    def what_was_fetched_is_told(self) -> None:
        self.life.deliver()

    # BMCs

    @rule(where=st.sampled_from(["a", "a", "a2", "b"]), fault=st.sampled_from(GETS), times=st.sampled_from([1, 2, 5]))
    def reading_will_fail(self, where: str, fault: Fault, times: int) -> None:
        self.bmcs[where].fault(fault, times=times)

    @rule(
        where=st.sampled_from(["a", "a", "a2", "b"]),
        fault=st.sampled_from(PATCHES),
        method=st.sampled_from(["PATCH", "POST"]),
    )
    def writing_will_fail(self, where: str, fault: Fault, method: str) -> None:
        self.bmcs[where].fault(fault, on="PATCH" if self.way not in BY_MEDIA else method)

    @rule(name=MACHINES, boot=st.sampled_from(WRITTEN))
    def somebody_else_writes(self, name: str, boot: dict[str, str | None]) -> None:
        self.machine(name).write(**boot)

    @rule(name=MACHINES, which=st.sampled_from([0, 1, 1]))
    def somebody_else_inserts_a_medium_or_takes_theirs_out(self, name: str, which: int) -> None:
        if self.way in BY_MEDIA:
            drive = self.machine(name).drives[which]
            drive.image = {None: RESCUE, RESCUE: None}.get(drive.image, drive.image)

    # The instance

    @rule(times=st.sampled_from([1, 1, 2, 4]), seconds=st.sampled_from([0, 0, 5, 31]))
    def it_makes_passes(self, times: int, seconds: int) -> None:
        for _ in range(times):
            self.life.wait(seconds)
            self.life.reconcile()

    @rule(writes=st.integers(0, 9), how=st.sampled_from(["before", "unmarked", "after", "full"]))
    def it_dies_as_it_writes_its_ledger(self, writes: int, how: str) -> None:
        self.life.crash_plan.dies_in = (writes, how)
        self.life.reconcile()

    @rule(name=MACHINES, when=st.sampled_from(["before", "after"]))
    def it_will_die_as_it_writes_to_a_bmc(self, name: str, when: str) -> None:
        self.machine(name).dies_at_patch = when

    @rule(what=st.sampled_from(["killed", "killed", "told to adopt", "given an older ledger", "given an older ledger"]))
    def it_is_restarted(self, what: str) -> None:
        if what == "told to adopt":
            self.life.adopt()
        elif what == "killed" or self.life.backup is None:
            self.life.kill()
        else:
            self.life.restore_backup()

    @rule()
    def its_ledger_is_backed_up(self) -> None:
        self.life.back_up()

    @rule(provisioned=st.booleans())
    def an_operator_sets_the_record(self, provisioned: bool) -> None:
        life = self.life
        if life.instance is None or not life.commit.here:
            return
        before = life.instance.reconciler.state.snapshot.stored_record(SystemUuid(life.commit.uuid))
        image = f"flatcar-{life.commit.image}"
        said = Record(provision=life.commit.provision, image=image, evidence="Operator") if provisioned else Record()
        facts = make_record_fields(said) | {
            "provisionedAt": make_record_fields(Record(provisioned_at=life.now))["provisionedAt"]
        }
        if before is not None:
            facts["runs"] = make_record_fields(before)["runs"]
        life.request("records", items=[{"uuid": life.commit.uuid, "server": life.commit.name, **facts}])

    @rule()
    def an_operator_resolves(self) -> None:
        """Truthfully, after a look at the machine."""
        life, named = self.life, self.life.named
        plan = life.plan if life.instance is not None else None
        if plan is None or named is None or any(machine.active_override for machine in life.machines):
            return
        key = plan.override.reason if plan.override is not None else plan.key
        made = life.key() is not None and (life.key(), life.epochs[life.commit.uuid]) in life.consumed
        life.request(
            "resolve",
            uuid=life.commit.uuid,
            server=life.commit.name,
            consumed=made,
            key=key,
            bmc=[self.bmcs[life.commit.bmc or "a"].url, named.path],
            reason="I was there",
        )

    @rule()
    def all_calms_down(self) -> None:
        self.life.calm_down()

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "life"):
            assert not self.life.violations, "\n".join(self.life.violations)


@pytest.fixture(scope="module")
def bmcs() -> Iterator[dict[str, RedfishServer]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(RedfishServer(Service())) for name in ("a", "a2", "b")}


@pytest.mark.parametrize(
    ("profile", "way"),
    [
        *((GENERIC, way) for way in BootMethod),
        *(
            (profile, BootMethod.ENTRY)
            for profile in (IDRAC10, ILO6, SUPERMICRO_X10, SUPERMICRO_X11, AMI, XCC, OPENBMC)
        ),
        (IDRAC9, BootMethod.DIRECT),  # which takes no URI
        *((profile, way) for way in BY_MEDIA for profile in (ILO6, XCC)),
    ],
    ids=lambda value: value.name if isinstance(value, Profile) else value.value,
)
def test_no_random_life_of_a_machine_installs_it_twice(
    profile: Profile,
    way: BootMethod,
    bmcs: dict[str, RedfishServer],
    tmp_path: Path,
    lives: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gitboot.ledger.store.os.fdatasync", lambda _: None)  # no power cut is tested
    totals: Counter[str] = Counter()
    facts = {"bmcs": bmcs, "folder": tmp_path, "profile": profile, "way": way, "totals": totals}
    run_state_machine_as_test(
        type("LivesOf", (Lives,), facts),
        settings=settings(
            max_examples=lives,
            stateful_step_count=40 if lives >= USUAL_LIVES else 20,  # and a life comes to its end in any case
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    _log.info("%d lives of %s: %s", lives, profile.name, dict(sorted(totals.items())))
