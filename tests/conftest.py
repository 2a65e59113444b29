"""Settings of tests: the search of Hypothesis, temporary folders, and tests that only run on request.

Hypothesis takes the same examples each time, and new ones if `--lives` makes the search longer. Neither has a deadline:
a busy machine is not a wrong result.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, settings

from gitboot.files import find_filesystem
from tests.boots import page
from tests.helpers import cases, forked_commands
from tests.helpers.forked_commands_client import umask

if TYPE_CHECKING:
    from tests.helpers.instance_in_process import Bench
    from tests.helpers.instance_with_bmcs import Rack
    from tests.helpers.postgresql import PostgresServer

_HERE: Final = Path(__file__).parent

os.environ.setdefault("GITBOOT_ACCEPT_FILESYSTEM", "tmpfs ramfs overlay")  # tests may be there, as in containers

os.environ.pop("COLUMNS", None)  # xdist sets it: tables have the width without a terminal

_MEMORY: Final = Path("/dev/shm")
_ROOM: Final = 1 << 30  # bytes; what is there at one time is less than half of it


def pytest_configure(config: pytest.Config) -> None:
    """Let tests write to memory if there is enough, because gitboot syncs all writes and a disk is slow.

    The images of boots and packages are too big for memory. Tests of disks create their own (`disks_and_terminals`).
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a background job of a shell; children would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cases.lives = config.getoption("lives")
    how = settings(
        derandomize=cases.lives == 1 or bool(os.environ.get("CI")),
        deadline=None,
        max_examples=cases.count_examples(100),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.register_profile("gitboot", how)
    settings.load_profile("gitboot")
    forked_commands.make_ledgers_at_once()
    forked_commands.compile_templates_once()
    forked_commands.wait_patiently()
    reaches_out = any(config.getoption(folder) for folder in _LEFT_OUT)
    if not reaches_out:
        os.environ["SSL_CERT_FILE"] = str(
            _HERE / "data" / "nobody.pem"
        )  # reading the trusted certificates of this machine takes 40 ms each time
    if "TMPDIR" not in os.environ and not reaches_out and _has_room(_MEMORY):
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None  # is computed again


def _has_room(folder: Path) -> bool:
    if not os.access(folder, os.W_OK) or find_filesystem(folder) != "tmpfs":
        return False
    found = os.statvfs(folder)
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= _ROOM


def _name_of(path: Path) -> str:
    return path.relative_to(_HERE).with_suffix("").as_posix()


def pytest_collection(session: pytest.Session) -> None:
    """Let each of several workers begin with other modules: what one has compiled, the others need only read."""
    gc.disable()  # nearly all that is made stays
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    paths = (path for path in _HERE.rglob("test_*.py") if path.parent.name not in _LEFT_OUT)
    modules = sorted(_name_of(path) for path in paths)
    first = len(modules) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for module in (*modules[first:], *modules[:first]):
        with suppress(Exception):  # the collection reports it later
            import_module(f"tests.{module.replace('/', '.')}")


def pytest_collection_finish() -> None:
    gc.freeze()  # it is not checked again
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lives", type=int, default=1, help="How long is searched for what chance alone finds.")
    parser.addoption("--boots", action="store_true", help="Boot real firmware as well (tests/boots).")
    parser.addoption("--packages", action="store_true", help="Build packages, and install them (tests/packages).")
    parser.addoption(
        "--write-hardware",
        action="store_true",
        help="Write what diff prints to docs/how-to/change-hardware.md and tests/hardware/reviews.",
    )
    parser.addoption(
        "--write-first-hour", action="store_true", help="Write what is printed to docs/tutorials/first-hour.md."
    )
    parser.addoption("--write-boots", action="store_true", help="Write what was booted to tests/boots/boots.md.")


# The files that take longest, by what they took on two cores: a worker that came to one of them last would end alone.
_FIRST: Final = (
    "packages/test_debian",
    "boots/test_ipxe",
    "boots/test_grub",
    "boots/test_ipv6",
    "boots/test_whole_way",
    "boots/test_paths",
    "boots/test_aarch64",
    "boots/test_kea",
    "scenarios/test_unwritable_ledger",
    "publish/targets/test_folder_rsync",
    "project/test_run_example",
    "controller/instance/test_standby",
    "endpoint/test_server",
    "scenarios/test_targets",
    "controller/instance/test_standby_tree",
    "scenarios/test_site_lives",
    "ledger/test_leader_lease",
    "scenarios/test_mirror_caches",
    "publish/test_publisher_kill",
    "evaluator/test_client",
    "publish/test_mirror_program",
    "cli/commands/test_init_ci_hostile",
    "publish/test_signed_list",
    "git/test_fetch",
    "publish/test_signed_list_check",
    "endpoint/test_recorder",
    "scenarios/test_credential_files",
    "endpoint/test_boot_gate",
    "fetchlog/test_access_logs",
    "controller/test_checkpoint",
    "endpoint/test_api",
    "scenarios/test_run",
    "scenarios/test_sites",
    "cli/commands/test_init",
    "docs/test_operations",
    "scenarios/test_kill",
    "project/test_benchmarks",
    "publish/test_mirror_repair",
    "scenarios/test_running_instances",
    "render/test_web_servers",
    "evaluator/test_evaluation",
)
# The needs of the tests of a folder, which are skipped without the option of its name.
_LEFT_OUT: Final = {
    "boots": "boots real firmware, for which `make test-boot` installs what is needed",
    "packages": "builds packages and installs them, for which `make test-packages` installs what is needed",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(_FIRST)}
    files = {item.path for item in items}
    places = {path: place.get(_name_of(path), len(place)) for path in files}
    items.sort(key=lambda item: places[item.path])
    for folder, needs in _LEFT_OUT.items():
        left_out = {path for path in files if path.is_relative_to(_HERE / folder)}
        for item in items:
            if item.path in left_out:
                item.add_marker(folder)
                if not config.getoption(folder):
                    item.add_marker(pytest.mark.skip(reason=needs))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("write_boots"):
        page.write(terminalreporter.getreports("passed"))
    for folder, needs in _LEFT_OUT.items():
        left_out = [report for report in terminalreporter.getreports("skipped") if folder in report.keywords]
        if left_out:
            names = sorted({report.nodeid.partition("::")[0] for report in left_out})
            terminalreporter.write_line(f"Left out: {len(left_out)} tests of {', '.join(names)}: each {needs}.")


@pytest.fixture
def lives() -> int:
    """Return how long to search: so many lives of a machine at each BMC, and kills and commits in proportion."""
    return cases.lives


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    from tests.helpers.instance_with_bmcs import Rack

    with Rack(tmp_path) as made:
        yield made


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    from tests.helpers.instance_in_process import Bench

    with Bench(tmp_path) as made:
        yield made


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL for ledgers, each in a schema of its own; a test that stops it makes one for itself."""
    from tests.helpers.postgresql import postgresql

    with postgresql() as server:
        yield server


@pytest.fixture(autouse=True)
def own_umask() -> Iterator[None]:
    """Give the next test the umask that this one had: two instances in one process leave the one that ended last."""
    before = umask()
    yield
    os.umask(before)
