"""Maintenance hooks: approvals and drains before a maintenance, with real web servers and machines that boot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Semaphore
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gitboot.artifacts.availability import Sighting
from gitboot.bmc.power_steps import PowerRecordState
from gitboot.controller.bmcs.manual_tasks import list_manual_tasks
from gitboot.controller.maintenance_hooks import HookClient, HookKind, Question, parse_hook_hosts
from gitboot.errors import UsageError
from gitboot.http_client import parse_origin
from gitboot.model.scalars import SystemUuid
from gitboot.render.token_keys import NO_KEYS
from gitboot.resolve.plan_at_time import make_plan
from gitboot.resolve.provisioning_record import Record, StopScope
from gitboot.resolve.server_decision import BootFile
from gitboot.resolve.server_plan import Cause, Phase
from tests.artifacts.test_availability import ABSENT, FakeWatch
from tests.controller.bmcs.test_desired_state_power import NAMES, Hall
from tests.helpers.cases import count_examples, for_each
from tests.helpers.fleets import at, decided, fleet, image, maintenance, make_uuid, policy, profile, server
from tests.helpers.http_peers import HookSystem, approve, hook_system, write_private
from tests.helpers.redfish_double.profiles import SUPERMICRO_X10
from tests.helpers.running_instance import eventually

NOON = at("20T12:00")
END = at("20T18:00")
SOON_S = 0.02  # between two requests of one question
DIGEST = "a" * 64
ONE_BY_ONE = "networkBoot: Once, power: Restart"
APPROVAL_FILE = "before: {approval: {file: approvals.txt}}"


@pytest.fixture
def system() -> Iterator[HookSystem]:
    with hook_system() as found:
        yield found


def make_client(*hosts: str, now: datetime = NOON) -> HookClient:
    return HookClient(parse_hook_hosts(hosts), lambda: now, lambda: None, every_s=SOON_S)


def question(url: str, kind: HookKind = HookKind.DRAIN, digest: str = DIGEST) -> Question:
    name = "web01" if kind is HookKind.DRAIN else None
    uuid = SystemUuid(make_uuid("web01")) if name is not None else None
    return Question(kind, url, "check", 1, digest, name, uuid, END)


# Requests


def test_a_drain_is_requested_until_it_answers_200(system: HookSystem) -> None:
    with closing(make_client(system.origin)) as hooks:
        asked = question(f"{system.origin}/drain")
        hooks.set_questions([asked])
        system.wait_for_calls(2)
        assert not hooks.get_answers()
        system.status = 200
        eventually(lambda: hooks.get_answers() == {asked})
        calls = len(system.calls)
        hooks.set_questions([asked])
        hooks.wait()
    assert len(system.calls) == calls
    assert system.calls[0].body == {
        "apiVersion": "gitboot.dev/v1alpha1",
        "kind": "MaintenanceDrain",
        "maintenance": "check",
        "run": 1,
        "digest": DIGEST,
        "windowEnd": "2026-11-20T18:00:00Z",
        "server": "web01",
        "uuid": make_uuid("web01"),
    }


def test_a_token_reaches_only_its_host(system: HookSystem, tmp_path: Path) -> None:
    token = write_private(tmp_path / "token", "very-secret\n")
    with hook_system() as other, closing(make_client(f"{system.origin}={token}", other.origin)) as hooks:
        hooks.set_questions([question(f"{system.origin}/drain"), question(f"{other.origin}/drain")])
        hooks.wait()
        assert {each.authorization for each in system.calls} == {"Bearer very-secret"}
        assert {each.authorization for each in other.calls} == {None}


def test_a_token_that_others_can_read_is_not_sent(system: HookSystem, tmp_path: Path) -> None:
    token = write_private(tmp_path / "token", "very-secret\n")
    token.chmod(0o644)
    with closing(make_client(f"{system.origin}={token}")) as hooks:
        hooks.set_questions([question(f"{system.origin}/drain")])
        hooks.wait()
        assert "chmod 600" in hooks.get_failures()[0].message
    assert not system.calls


def test_a_redirect_is_not_followed(system: HookSystem) -> None:
    with hook_system(status=200) as other, closing(make_client(system.origin, other.origin)) as hooks:
        system.status, system.location = 307, f"{other.origin}/drain"
        hooks.set_questions([question(f"{system.origin}/drain")])
        system.wait_for_calls(2)
        assert not hooks.get_answers()
        assert "redirect (HTTP status 307)" in hooks.get_failures()[0].message
        assert not other.calls


def test_a_host_that_is_not_listed_gets_no_request(system: HookSystem) -> None:
    with hook_system(status=200) as listed, closing(make_client(listed.origin)) as hooks:
        hooks.set_questions([question(f"{system.origin}/drain"), question(f"{listed.origin}/drain")])
        eventually(hooks.get_answers)
        (failure,) = hooks.get_failures()
        assert failure.is_unlisted
    assert not system.calls


@for_each(
    ("case", "status", "answer", "is_approved"),
    [
        ("the same digest", 200, {}, True),
        ("another digest", 200, {"digest": "b" * 64}, False),
        ("another maintenance", 200, {"maintenance": "other"}, False),
        ("not approved", 200, {"approved": False}, False),
        ("text instead of true", 200, {"approved": "true"}, False),
        ("another status", 202, {}, False),
        ("a body above the limit", 200, {"padding": "x" * (64 << 10)}, False),
    ],
)
def test_an_approval_names_the_maintenance_and_the_digest(
    case: str, status: int, answer: dict[str, Any], is_approved: bool
) -> None:
    with (
        hook_system(status=status, answers=lambda body: {**approve(body), **answer}) as system,
        closing(make_client(system.origin)) as hooks,
    ):
        hooks.set_questions([question(f"{system.origin}/approve", HookKind.APPROVAL)])
        hooks.wait()
        assert bool(hooks.get_answers()) is is_approved, case


def test_a_question_is_not_asked_after_its_window(system: HookSystem) -> None:
    with hook_system(status=200) as other, closing(make_client(system.origin, other.origin, now=END)) as hooks:
        hooks.set_questions([question(f"{system.origin}/drain")])
        hooks.set_questions([question(f"{system.origin}/drain"), replace_end(question(f"{other.origin}/drain"))])
        eventually(hooks.get_answers)
    assert not system.calls


def test_a_host_that_hangs_does_not_delay_the_other_hosts(system: HookSystem) -> None:
    held, released = Semaphore(0), Event()

    def hang(body: dict[str, Any]) -> object:
        held.release()
        released.wait()
        return body

    system.answers = hang
    many = [question(f"{system.origin}/drain/{number}") for number in range(8)]
    with hook_system(status=200) as other:
        hosts = parse_hook_hosts([system.origin, other.origin])
        # No request ends by its deadline during this test.
        with closing(HookClient(hosts, lambda: NOON, lambda: None, request_s=3600)) as hooks:
            hooks.set_questions(many)
            assert all(held.acquire(timeout=60) for _ in range(3))
            hooks.set_questions([*many, quick := question(f"{other.origin}/drain")])
            eventually(lambda: hooks.get_answers() == {quick})
            released.set()


def test_a_question_that_is_wanted_again_during_its_request_is_not_asked_twice(system: HookSystem) -> None:
    held, released = Semaphore(0), Event()

    def hang(_: dict[str, Any]) -> object:
        held.release()
        released.wait()
        return {}

    system.answers, system.status = hang, 200
    with closing(make_client(system.origin)) as hooks:
        asked, later = question(f"{system.origin}/drain"), question(f"{system.origin}/later")
        hooks.set_questions([asked])
        assert held.acquire(timeout=60)
        hooks.set_questions([])
        hooks.set_questions([asked])
        hooks.set_questions([asked, later])
        assert held.acquire(timeout=60)
        released.set()
        eventually(lambda: hooks.get_answers() == {asked, later})
    assert [each.path for each in system.calls].count("/drain") == 1


def replace_end(asked: Question) -> Question:
    return asked._replace(until=END + timedelta(hours=1))


@for_each(
    ("values", "error"),
    [
        (["drain.test"], "expected https:// or http:// followed by a host"),
        (["https://drain.test/path"], "must not have a path"),
        (["https://user:word@drain.test"], "must not contain a user name"),
        (["https://drain.test", "https://drain.test:443=token"], "listed twice"),
    ],
)
def test_a_wrong_host_in_the_settings_is_an_error(values: list[str], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        parse_hook_hosts(values)


def test_a_listed_host_counts_with_its_scheme_and_port() -> None:
    found = parse_hook_hosts(["https://drain.test=/etc/token", "http://127.0.0.1:8080/"])
    assert found == {
        parse_origin("https://drain.test:443/any"): Path("/etc/token"),
        parse_origin("http://127.0.0.1:8080"): None,
    }


# Servers


class HookedHall(Hall):
    """A hall whose instance asks a web server, and whose clock the questions follow."""

    def __init__(self, folder: Path, stack: ExitStack, *hosts: str, **given: Any) -> None:
        self.waits = stack.enter_context(
            closing(HookClient(parse_hook_hosts(hosts), lambda: self.bench.now, lambda: None, every_s=SOON_S))
        )
        self.bench: Any = None
        super().__init__(folder, stack, hooks=self.waits, **given)

    def causes(self) -> list[Cause | None]:
        return [self.cause(name) for name in self.names]

    def answer(self, system: HookSystem) -> None:
        """Let the web server answer 200, until gitboot knows it."""
        system.status = 200
        eventually(self.waits.get_answers)

    def digests(self) -> set[str]:
        decisions = self.bench.decisions.servers.values()
        return {each.before.digest for decision in decisions for each in decision.maintenances if each.before}


def make_check(spec: str, window: str = "20T11:00 20T18:00", more: str = "") -> str:
    return maintenance("check", window, f"{ONE_BY_ONE}, {spec}{more}")


def drain_spec(system: HookSystem) -> str:
    return f"before: {{drain: {{url: '{system.origin}/drain'}}}}"


def approval_spec(system: HookSystem) -> str:
    return f"before: {{approval: {{url: '{system.origin}/approve'}}}}"


def test_a_server_waits_for_the_approval_in_the_file(tmp_path: Path, stack: ExitStack) -> None:
    hall = HookedHall(tmp_path, stack)
    hall.decide(make_check(APPROVAL_FILE), files={"approvals.txt": "# nothing yet\n"})
    assert hall.resets_after(3600, step=600) == [0, 0, 0]
    assert hall.causes() == [Cause.WAITING_FOR_APPROVAL] * 3
    assert {each.plan.boot for each in hall.bench.servers.values()} == {None}
    assert hall.condition("MaintenancesCleared") == (False, "WaitingForApproval")
    (digest,) = hall.digests()  # every server boots the same

    hall.decide(make_check(APPROVAL_FILE), files={"approvals.txt": f"check {'0' * 64}\nother {digest}\n"})
    assert hall.resets_after(62) == [0, 0, 0]

    hall.decide(make_check(APPROVAL_FILE), files={"approvals.txt": f"check {digest}  # ada\n"})
    assert hall.resets_after() == [1, 0, 0]
    assert hall.bench.servers["web01"].plan.phase is Phase.MAINTENANCE
    assert hall.condition("MaintenancesCleared") == ()

    hall.decide(make_check(APPROVAL_FILE), files={"approvals.txt": "\n"})  # withdrawn
    assert hall.resets_after(3600, step=62) == [1, 0, 0]


def get_digest(spec: str = "", window: str = "20T11:00 20T18:00", boots: str = "", template: str = "a") -> str:
    """Return the digest of what web01 boots in a maintenance."""
    found = decided(
        *(fleet(), server("web01", "role: web"), image("memtest-7", "writesDisk: false, userData: CloudInit")),
        profile("repair", "memtest-7", f"userData: {{format: CloudInit, template: data}}{boots}"),
        policy("web", boots="repair"),
        make_check(APPROVAL_FILE, window, spec),
        files={"approvals.txt": "", "data": f"#cloud-config\n# {template}\n"},
    )
    (decision,) = found.servers["web01"].maintenances
    assert decision.before is not None
    return decision.before.digest


@for_each(
    ("case", "given", "is_same"),
    [
        ("the reason", {"spec": ", reason: tidy up"}, True),
        ("a default that is written", {"spec": ", priority: 0"}, True),
        ("the run", {"spec": ", run: 2"}, False),
        ("the limit", {"spec": ", maxUnavailable: 2"}, False),
        ("the window", {"window": "20T11:00 20T19:00"}, False),
        ("the arguments", {"boots": ", kernelArguments: [quiet]"}, False),
        ("the user data", {"template": "b"}, False),
    ],
)
def test_the_digest_changes_with_what_the_maintenance_does(case: str, given: dict[str, str], is_same: bool) -> None:
    assert (get_digest(**given) == get_digest()) is is_same, case


def test_a_drain_that_never_ends_resets_nothing_and_ends_with_the_window(
    tmp_path: Path, stack: ExitStack, system: HookSystem
) -> None:
    hall = HookedHall(tmp_path, stack, system.origin)
    hall.decide(make_check(drain_spec(system)))
    assert hall.resets_after(6 * 3600 - 60, step=600) == [0, 0, 0]
    assert hall.causes() == [Cause.WAITING_FOR_DRAIN] * 3
    assert hall.condition("MaintenancesCleared") == (False, "WaitingForDrain")
    assert {each.body["server"] for each in system.calls} == {"web01"}  # at most one server is out of service
    assert hall.resets_after(120) == [0, 0, 0]
    assert (hall.causes(), hall.condition("MaintenancesCleared")) == ([Cause.NEVER] * 3, ())
    calls = len(system.calls)
    hall.run(600)
    assert len(system.calls) <= calls + 1  # a request that had begun before the end


def test_a_drain_that_ends_after_the_window_changes_nothing(
    tmp_path: Path, stack: ExitStack, system: HookSystem
) -> None:
    hall = HookedHall(tmp_path, stack, system.origin)
    hall.decide(make_check(drain_spec(system)))
    hall.run()
    hall.run()
    system.wait_for_calls(1)
    hall.answer(system)  # gitboot has the answer, and takes it in after the end of the window
    hall.wait(6 * 3600)
    assert hall.resets_after(3600, step=600) == [0, 0, 0]
    assert hall.causes() == [Cause.NEVER] * 3
    record = hall.bench.snapshot.stored_record(SystemUuid(make_uuid("web01")))
    assert record is not None
    assert record.clearances["check"].drained_at is None


def drain_first_server(hall: HookedHall, system: HookSystem) -> None:
    hall.decide(make_check(drain_spec(system)))
    hall.run(31)
    hall.bench.bmcs.takes = False  # so the drained server is not reset
    hall.answer(system)
    hall.run()
    assert hall.causes() == [Cause.MAINTENANCE, *[Cause.WAITING_FOR_DRAIN] * 2]


def test_a_drain_does_not_count_after_its_window_even_if_a_commit_extends_the_window(
    tmp_path: Path, stack: ExitStack, system: HookSystem
) -> None:
    """The server may be in service again since the end of the window."""
    hall = HookedHall(tmp_path, stack, system.origin)
    drain_first_server(hall, system)
    hall.run(6 * 3600, step=600)
    assert hall.causes() == [Cause.NEVER] * 3
    system.status = 503
    hall.bench.bmcs.takes = True
    hall.decide(make_check(drain_spec(system), "20T11:00 21T18:00"))
    assert hall.resets_after(93) == [0, 0, 0]
    assert hall.causes() == [Cause.WAITING_FOR_DRAIN] * 3


def test_a_commit_that_moves_the_end_of_an_open_window_keeps_the_drains(
    tmp_path: Path, stack: ExitStack, system: HookSystem
) -> None:
    hall = HookedHall(tmp_path, stack, system.origin)
    hall.decide(make_check(drain_spec(system)))
    hall.run(31)
    hall.answer(system)
    assert hall.resets_after(31) == [1, 0, 0]
    for number in range(60):  # the first commit comes before web01 boots, the second one after web02 has booted
        if number in (0, 30):
            hall.decide(make_check(drain_spec(system), f"20T11:00 20T{19 if number else 17}:00"))
        hall.run(31)
        hall.waits.wait()
    assert hall.resets == [1, 1, 1]
    assert [name for name, _ in groupby(each.body["server"] for each in system.calls)] == list(hall.names)
    assert {each.type for each in hall.bench.events} & {"DrainStarted", "Drained"} == {"DrainStarted", "Drained"}
    assert [each.type for each in hall.bench.events].count("DrainStarted") == 3


def test_a_drain_ends_if_a_commit_ends_or_removes_the_maintenance(
    tmp_path: Path, stack: ExitStack, system: HookSystem
) -> None:
    hall = HookedHall(tmp_path, stack, system.origin)
    for other in (make_check(drain_spec(system), "20T11:00 20T11:30"), ""):
        drain_first_server(hall, system)
        system.status = 503
        hall.decide(other)
        hall.run()
        hall.bench.bmcs.takes = True
        hall.decide(make_check(drain_spec(system)))
        assert hall.resets_after(93) == [0, 0, 0]
        assert hall.causes() == [Cause.WAITING_FOR_DRAIN] * 3


@for_each(
    ("case", "stop", "lacks_files", "cause"),
    [
        ("nothing prevents the boot", StopScope.NONE, False, Cause.WAITING_FOR_DRAIN),
        ("a file is missing", StopScope.NONE, True, Cause.FILE_MISSING),
        ("boots that write disks are stopped", StopScope.WRITING, False, Cause.STOPPED),
        ("all boots are stopped", StopScope.ALL, False, Cause.ALL_STOPPED),
    ],
)
def test_a_server_is_not_drained_for_a_boot_that_gitboot_would_not_offer(
    case: str, stop: StopScope, lacks_files: bool, cause: Cause
) -> None:
    bmc = "bmc: {address: 'https://10.0.0.1', credentials: rack}"
    found = decided(
        *(fleet(), server("web01", "role: web", bmc), image("flatcar-1"), profile("repair", "flatcar-1")),
        policy("web", boots="repair", often="Never"),
        make_check("before: {drain: {url: 'http://drain.test/drain'}}"),
    )
    decision = found.servers["web01"]
    boot = decision.maintenances[0].boot
    assert boot is not None
    plan = make_plan(
        decision, NOON, Record(provision=0), stop=stop, absent_files=boot.files.all() if lacks_files else ()
    )
    assert plan is not None
    assert plan.cause is cause, case


def test_servers_are_drained_and_reset_one_after_another(tmp_path: Path, stack: ExitStack, system: HookSystem) -> None:
    hall = HookedHall(tmp_path, stack, system.origin)
    hall.decide(make_check(drain_spec(system)))
    hall.run(31)
    assert (hall.resets, hall.causes()) == ([0, 0, 0], [Cause.WAITING_FOR_DRAIN] * 3)
    hall.answer(system)
    assert hall.resets_after(31) == [1, 0, 0]
    assert hall.causes()[1:] == [Cause.WAITING_FOR_DRAIN] * 2
    assert {each.body["server"] for each in system.calls} == {"web01"}
    for _ in range(40):  # the machine boots, and then the next one is drained
        hall.run(31)
        hall.waits.wait()
    assert hall.resets == [1, 1, 1]
    assert [each.body["server"] for each in system.calls if each.body][-1] == "web03"
    assert [each.type for each in hall.bench.events if each.type == "Drained"] == ["Drained"] * 3


def test_an_instance_that_reconciles_once_drains_nothing(tmp_path: Path, stack: ExitStack, system: HookSystem) -> None:
    hall = HookedHall(tmp_path, stack, system.origin)
    hall.waits.may_drain = False
    hall.decide(make_check(drain_spec(system)))
    hall.run(93)
    assert (system.calls, hall.causes()) == ([], [Cause.WAITING_FOR_DRAIN] * 3)
    hall.waits.may_drain = True
    hall.run(31)
    system.wait_for_calls(1)


def make_approved_hall(folder: Path, stack: ExitStack) -> tuple[HookedHall, HookSystem]:
    """Return a hall whose maintenance a URL has approved. The URL would not approve it again."""
    system = stack.enter_context(hook_system(answers=approve))
    hall = HookedHall(folder, stack, system.origin)
    hall.decide(make_check(approval_spec(system)))
    hall.bench.bmcs.takes = False  # no BMC is asked, so no machine is reset yet
    hall.run()
    assert hall.causes() == [Cause.WAITING_FOR_APPROVAL] * 3
    hall.answer(system)
    hall.run()
    assert hall.causes() == [Cause.MAINTENANCE] * 3
    assert hall.resets == [0, 0, 0]
    system.status = 403
    return hall, system


def test_an_approval_from_a_url_survives_a_restart(tmp_path: Path, stack: ExitStack) -> None:
    hall, system = make_approved_hall(tmp_path, stack)
    calls = len(system.calls)
    hall.restart()
    assert hall.resets_after() == [1, 0, 0]
    assert hall.causes() == [Cause.MAINTENANCE] * 3
    assert len(system.calls) == calls


def test_a_restart_continues_a_drain_and_begins_no_other(tmp_path: Path, stack: ExitStack, system: HookSystem) -> None:
    hall = HookedHall(tmp_path, stack, system.origin)
    hall.decide(make_check(drain_spec(system)))
    hall.run(31)
    system.wait_for_calls(1)
    hall.restart()
    hall.run(93)
    system.wait_for_calls(1)
    assert {each.body["server"] for each in system.calls} == {"web01"}
    assert [each.type for each in hall.bench.events if each.type == "DrainStarted"] == []
    hall.answer(system)
    assert hall.resets_after(31) == [1, 0, 0]


def test_the_answer_of_another_url_does_not_count(tmp_path: Path, stack: ExitStack) -> None:
    hall, system = make_approved_hall(tmp_path, stack)
    hall.decide(make_check(approval_spec(system).replace("/approve", "/other")))
    hall.run()
    assert hall.causes() == [Cause.WAITING_FOR_APPROVAL] * 3


def test_an_approval_from_a_url_does_not_count_for_another_digest(tmp_path: Path, stack: ExitStack) -> None:
    hall, system = make_approved_hall(tmp_path, stack)
    hall.bench.bmcs.takes = True
    hall.decide(make_check(approval_spec(system), more=", run: 2"))
    assert hall.resets_after(62) == [0, 0, 0]
    assert hall.causes() == [Cause.WAITING_FOR_APPROVAL] * 3


def test_the_drain_follows_the_approval(tmp_path: Path, stack: ExitStack) -> None:
    system = stack.enter_context(hook_system(answers=approve))
    hall = HookedHall(tmp_path, stack, system.origin)
    both = f"approval: {{url: '{system.origin}/approve'}}, drain: {{url: '{system.origin}/drain'}}"
    hall.decide(make_check(f"before: {{{both}}}"))
    hall.run(62)
    assert system.paths() == {"/approve"}
    hall.answer(system)
    hall.run()
    assert hall.causes() == [Cause.WAITING_FOR_DRAIN] * 3


def test_a_host_that_the_settings_do_not_list_is_a_condition(tmp_path: Path, stack: ExitStack) -> None:
    system = stack.enter_context(hook_system(status=200, answers=approve))
    hall = HookedHall(tmp_path, stack)
    hall.decide(make_check(approval_spec(system)))
    assert hall.resets_after(62) == [0, 0, 0]
    assert hall.condition("MaintenancesCleared") == (False, "HostNotListed")
    found = next(each for each in hall.bench.instance.reconciler.state.conditions if each.type == "MaintenancesCleared")
    assert found.remedy is not None
    assert f'maintenance-hosts = ["{system.origin}"]' in found.remedy
    assert not system.calls


# A drain that has begun


SITES = ", ".join(
    f"{{name: {name}, select: {{matchLabels: {{host: {name}}}}}, baseURL: 'http://{name}.test'}}" for name in NAMES
)
URGENT = "priority: 9, networkBoot: Once"


def hide_files(hall: Hall, *names: str) -> dict[BootFile, Sighting]:
    """Return results of checks that miss the files of these servers alone."""
    boots = [boot for name in names for boot in hall.bench.decisions.servers[name].boots]
    return {file: ABSENT for boot in boots for file in boot.fetched_files}


class DrainedHall(HookedHall):
    """A hall in which each server boots its own files. It checks how many servers are out of service.

    A server is out of service from the start of its drain until its machine is back after a reset, or until the drain
    ends with its window.
    """

    def __init__(self, folder: Path, stack: ExitStack, system: HookSystem, most: int) -> None:
        self.system, self.most, self.told = system, most, FakeWatch()
        self.out: dict[str, int] = {}  # the resets of each machine when its drain began
        self.run_number, self.end, self.urgent = 1, END, set[str]()
        super().__init__(folder, stack, system.origin, artifacts=self.told)
        self.merge()

    def merge(self) -> None:
        spec = f"{drain_spec(self.system)}, maxUnavailable: {self.most}, run: {self.run_number}"
        window = f"20T11:00 {self.end:%dT%H:%M}"
        urgent = (
            maintenance(f"urgent-{name}", window, URGENT, select=f"{{matchLabels: {{host: {name}}}}}")
            for name in sorted(self.urgent)
        )
        self.decide(make_check(spec, window), *urgent, sites=SITES)

    def step(self, seconds: float = 31) -> None:
        """Let time pass, and check the servers that are out of service."""
        self.wait(seconds)
        for _ in range(2):
            seen = len(self.bench.events)
            self.bench.reconcile()
            self.waits.wait()
            if self.bench.now >= self.end:
                self.out.clear()
            for name, before in list(self.out.items()):
                if self.machines[name].resets > before and self.machines[name].state == "OSRunning":
                    del self.out[name]
            for event in self.bench.events[seen:]:
                begun = event.type == "DrainStarted"
                for name in (event.facts.get("servers") or [event.facts["server"]]) if begun else ():
                    self.out[name] = self.machines[name].resets
            assert len(self.out) <= self.most, sorted(self.out)

    def hide(self, *names: str) -> None:
        """Let the files of these servers be missing, and those of all other servers be there."""
        self.told.sightings = hide_files(self, *names)

    def finish_drain(self, name: str) -> None:
        """Let the drain of a server end, and wait until gitboot has the answer if it asks."""
        self.system.drained.add(name)
        eventually(lambda: not any(each.question.server == name for each in self.waits.get_failures()))


def test_a_server_counts_from_the_start_of_its_drain_even_if_its_files_are_missing(
    tmp_path: Path, stack: ExitStack, system: HookSystem
) -> None:
    hall = DrainedHall(tmp_path, stack, system, most=1)
    hall.step()
    assert list(hall.out) == ["web01"]
    hall.hide("web01")
    for _ in range(10):
        hall.step()
    assert hall.causes() == [Cause.FILE_MISSING, *[Cause.WAITING_FOR_DRAIN] * 2]
    hall.hide()
    hall.step()
    hall.bench.bmcs.takes = False  # so the drained server is not reset yet
    hall.finish_drain("web01")
    hall.step()
    assert hall.causes() == [Cause.MAINTENANCE, *[Cause.WAITING_FOR_DRAIN] * 2]
    hall.hide("web01")
    hall.bench.bmcs.takes = True
    for _ in range(10):
        hall.step()
    assert (hall.resets, list(hall.out)) == ([0, 0, 0], ["web01"])
    hall.hide()
    hall.step()
    assert (hall.resets, list(hall.out)) == ([1, 0, 0], ["web01"])
    hall.hide("web01")  # after the reset, and before the machine is back
    for _ in range(10):
        hall.step()
    assert (hall.causes()[0], list(hall.out)) == (Cause.FILE_MISSING, ["web02"])


def test_a_machine_counts_from_its_reset_until_it_is_back_even_if_its_files_are_missing(
    tmp_path: Path, stack: ExitStack
) -> None:
    told = FakeWatch()
    hall = Hall(tmp_path, stack, artifacts=told)
    hall.decide(make_check("maxUnavailable: 1"), sites=SITES)
    assert hall.resets_after() == [1, 0, 0]
    told.sightings = hide_files(hall, "web01")
    assert hall.resets_after(62) == [1, 0, 0]  # it is in POST
    assert hall.resets_after(62) == [1, 1, 0]
    assert (hall.cause("web01"), hall.states("web01")) == (
        Cause.FILE_MISSING,
        {"power/check/1": PowerRecordState.BACK},
    )


@pytest.mark.parametrize(("window", "run"), [("20T11:00 20T18:00", 2), ("20T12:02 20T18:00", 1)])
def test_a_machine_that_is_away_for_an_earlier_run_or_window_counts_even_if_its_files_are_missing(
    tmp_path: Path, stack: ExitStack, window: str, run: int
) -> None:
    told = FakeWatch()
    hall = Hall(tmp_path, stack, artifacts=told)
    hall.machines["web01"].post_s = 400
    spec = "networkBoot: Always, power: Restart"
    hall.decide(maintenance("check", "20T11:00 20T12:02", spec), sites=SITES)
    assert hall.resets_after() == [1, 0, 0]
    hall.wait(150)
    hall.decide(maintenance("check", window, f"{spec}, run: {run}"), sites=SITES)
    told.sightings = hide_files(hall, "web01")
    assert hall.resets_after(200) == [1, 0, 0]
    assert hall.cause("web01") is Cause.FILE_MISSING
    assert hall.resets_after(310) == [1, 1, 0]
    assert hall.states("web01") == {"power/check/1": PowerRecordState.BACK}


@pytest.mark.parametrize(
    "changes", ["power: Restart", f"power: Restart, {APPROVAL_FILE}", "power: GracefulRestart, run: 7"]
)
def test_a_machine_counts_for_the_maintenance_that_reset_it_even_if_another_one_takes_over(
    tmp_path: Path, stack: ExitStack, changes: str
) -> None:
    hall = Hall(tmp_path, stack)
    hall.machines["web01"].post_s = 400
    hall.decide(make_check("maxUnavailable: 1"))
    assert hall.resets_after() == [1, 0, 0]
    urgent = maintenance("urgent", "20T11:00 20T18:00", f"{URGENT}, {changes}", select="{matchLabels: {host: web01}}")
    hall.decide(make_check("maxUnavailable: 1"), urgent, files={"approvals.txt": "\n"})
    assert hall.resets_after(350) == [1, 0, 0]
    hall.run(600)
    assert hall.states("web01")["power/check/1"] is PowerRecordState.BACK
    assert hall.resets[1] == 1


def test_a_machine_is_seen_to_be_back_while_its_next_run_waits_for_an_approval(
    tmp_path: Path, stack: ExitStack
) -> None:
    hall = Hall(tmp_path, stack)
    hall.decide(make_check("run: 1"))
    assert hall.resets_after() == [1, 0, 0]
    hall.decide(make_check(f"run: 2, {APPROVAL_FILE}"), files={"approvals.txt": "\n"})
    hall.run(3600, step=300)
    assert (hall.cause("web01"), hall.states("web01")) == (
        Cause.WAITING_FOR_APPROVAL,
        {"power/check/1": PowerRecordState.BACK},
    )
    assert hall.condition("PowerWavesRunning") == (True, "Running")


def test_bmc_get_waits_for_the_same_machines_as_the_instance(tmp_path: Path, stack: ExitStack) -> None:
    told = FakeWatch()
    hall = Hall(tmp_path, stack, artifacts=told)
    hall.decide(make_check("maxUnavailable: 1"), sites=SITES)
    assert hall.resets_after() == [1, 0, 0]
    told.sightings = hide_files(hall, "web01")
    hall.run(31)
    bench = hall.bench
    assert hall.cause("web01") is Cause.FILE_MISSING
    subjects = list_manual_tasks(bench.commit, bench.snapshot, NO_KEYS, bench.now)
    assert {each.uuid: each.power for each in subjects} == bench.schedule.power
    assert SystemUuid(make_uuid("web01")) in bench.schedule.power


def test_if_a_bmc_shows_no_progress_a_machine_without_its_files_does_not_stop_the_maintenance(
    tmp_path: Path, stack: ExitStack
) -> None:
    told = FakeWatch()
    hall = Hall(tmp_path, stack, profile=SUPERMICRO_X10, artifacts=told)
    hall.decide(make_check("maxUnavailable: 1"), sites=SITES)
    assert hall.resets_after() == [1, 0, 0]
    told.sightings = hide_files(hall, "web01")
    assert hall.resets_after(1500, step=300) == [1, 0, 0]
    assert hall.resets_after(600, step=300) == [1, 1, 0]
    assert (hall.cause("web01"), hall.condition("PowerWavesRunning")) == (Cause.FILE_MISSING, (True, "Running"))


_CHANGES = st.sampled_from(
    ["files", "files", "drained", "drained", "urgent", "run", "end", "restart", "off", "on", "wait", "wait"]
)


@settings(max_examples=count_examples(30), deadline=None)
@given(st.integers(1, 2), st.lists(st.tuples(_CHANGES, st.sampled_from(NAMES)), min_size=5, max_size=20))
def test_never_are_more_servers_out_of_service_than_the_maintenance_allows(
    most: int, changes: list[tuple[str, str]]
) -> None:
    hidden = set[str]()
    with TemporaryDirectory() as folder, ExitStack() as stack:
        system = stack.enter_context(hook_system())
        hall = DrainedHall(Path(folder), stack, system, most)
        hall.step()
        for change, name in changes:
            match change:
                case "files":
                    hidden ^= {name}
                case "drained":
                    hall.finish_drain(name)
                case "urgent":
                    hall.urgent ^= {name}
                    hall.merge()
                case "run":
                    hall.run_number += 1
                    system.drained.clear()
                    hall.merge()
                case "end":
                    hall.end += timedelta(hours=1)
                    hall.merge()
                case "restart":
                    hall.restart()
                case "off" | "on":
                    hall.machines[name].reset("ForceOff" if change == "off" else "On")
                case "wait":
                    hall.step(93)
            hall.hide(*hidden)
            hall.step()
