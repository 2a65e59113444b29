"""`gitboot doctor`: the surroundings of an instance, with and without missing parts."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gitboot.cli.commands import doctor
from gitboot.cli.commands.doctor import Health, fine, of_git, of_output, of_proxy, of_state, of_the_clock
from gitboot.cli.main import Exit
from gitboot.system_clock import ClockState
from tests.helpers.fleets import decided, fleet, image, policy, profile, server, uuid_of
from tests.helpers.instance_with_bmcs import Rack, typed


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    """A rack whose tree is served under its base URL, with the loaders that DHCP names."""
    folder = tmp_path_factory.mktemp("doctor")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder / "output/boot"))) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with Rack(folder, settings=f"baseURL: 'http://127.0.0.1:{server.server_port}'") as made:
            made.add("web01")
            made.add("web02")
            made.push()
            made.once(*made.spooling, records="fresh")
            loaders = made.output / "boot/assets/loaders"
            loaders.mkdir(parents=True)
            for name in ("undionly.kpxe", "snponly-x86_64.efi", "ipxe-aarch64.efi", "grub-x86_64.efi"):
                (loaders / name).write_bytes(b"a loader")
            (made.folder / "run.toml").write_text(
                f"out = '{made.output}'\nstate = '{made.state}'\ncredentials = '{made.credentials}'\npoll = 5\n"
            )
            yield made
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gitboot.system_clock.read_clock_state", lambda: ClockState.SYNCHRONISED)


def run_doctor(*arguments: object) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    done = typed("doctor", *arguments, "-o", "json")
    items = defaultdict(list)
    for each in done.json["items"]:
        items[each["subject"]].append(each)
    return done.code, items


def test_every_check_runs_with_the_settings_of_run(rack: Rack) -> None:
    code, items = run_doctor("--config", rack.folder / "run.toml")
    wrong = {name: each for name, them in items.items() for each in them if each["health"] == "failed"}
    assert (code, wrong) == (Exit.FINE, {})
    assert items.keys() >= {"git", "clock", "state", "disk", "ledger", "output", "credentials", "DHCP", "loaders"}
    assert "has 2 machines; no gitboot process uses it" in items["ledger"][0]["message"]
    assert items["credentials"][0]["message"] == "rack, for 2 BMCs"


def test_a_missing_file_is_named_with_a_hint(rack: Rack, tmp_path: Path) -> None:
    moved = shutil.move(rack.output / "boot/assets/loaders/snponly-x86_64.efi", tmp_path)
    code, items = run_doctor("--state", rack.state, "--credentials", tmp_path)
    shutil.move(moved, rack.output / "boot/assets/loaders")
    (loaders,), (credentials,) = items["loaders"], items["credentials"]
    assert code == Exit.PARTIAL
    assert loaders["message"].endswith(
        "/assets/ does not contain boot loaders that DHCP uses: loaders/snponly-x86_64.efi"
    )
    assert "2 servers (web01, web02)" in credentials["message"]
    assert credentials["hint"].startswith(f"{tmp_path}/rack/username")
    (rack.output / "boot/boot.ipxe").rename(tmp_path / "boot.ipxe")
    said = typed("doctor", "--state", rack.state, "--credentials", rack.credentials).out
    (tmp_path / "boot.ipxe").rename(rack.output / "boot/boot.ipxe")
    assert "failed   DHCP" in said and "    curl -I http://127.0.0.1:" in said


def test_a_url_that_does_not_fit_in_the_answer_of_a_proxy_is_named() -> None:
    seed = (image("web-1"), profile("web", "web-1"), policy("web", "All"), server("web01"))
    base_url = f"http://boot.test/{'a' * 100}"
    for outputs in ("ipxe, dhcp-proxy", "ipxe, dhcp-kea"):
        decisions = decided(fleet(f"baseURL: '{base_url}', outputs: [{outputs}]"), *seed)
        named = [(each.health, each.message.rpartition("/")[2]) for each in of_proxy(decisions)]
        files = ("ipxe-aarch64.efi", "snponly-x86_64.efi", "undionly.kpxe")
        assert named == [("failed", file) for file in files if "proxy" in outputs]
    short = decided(fleet("baseURL: 'http://boot.test', outputs: [ipxe, dhcp-proxy]"), *seed)
    assert [each.health for each in of_proxy(short)] == ["ok"]


def test_credentials_that_may_not_be_sent_to_a_bmc_of_a_document_are_named(rack: Rack, tmp_path: Path) -> None:
    credentials = Path(shutil.copytree(rack.credentials, tmp_path / "credentials"))
    (credentials / "rack" / "access.toml").write_text('networks = ["192.0.2.0/24"]\n')
    _, items = run_doctor("--state", rack.state, "--credentials", credentials)
    (networks,) = items["networks"]
    assert networks["message"] == (
        "access.toml does not allow gitboot to send the credentials rack to the BMCs of 2 servers (web01, web02)"
    )
    assert networks["hint"].startswith(f"gitboot bmc access-files --state {rack.state} ")


def test_doctor_changes_nothing(rack: Rack) -> None:
    def everything() -> dict[Path, float]:
        return {each: each.stat().st_mtime for each in rack.folder.rglob("*") if each.is_file()}

    before = everything()
    run_doctor("--config", rack.folder / "run.toml")
    assert everything() == before


def test_an_unknown_setting_of_run_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("outt = '/srv'\n")
    done = typed("doctor", "--config", tmp_path / "run.toml")
    assert (done.code, "there is no setting 'outt'; did you mean out?" in done.err) == (Exit.USAGE, True)


def test_an_unsynchronised_clock_and_a_library_without_ssh_are_failures(tmp_path: Path) -> None:
    assert [each.health for each in of_the_clock(ClockState.UNSYNCHRONISED)] == [Health.WRONG]
    assert [each.health for each in of_the_clock(ClockState.UNKNOWN)] == [Health.DOUBTFUL]
    assert [each.health for each in of_the_clock(ClockState.UNKEPT)] == [Health.DOUBTFUL]
    (lacks,) = of_git({"https": True, "ssh": False}, "1.9")
    assert (lacks.health, lacks.message) == (Health.WRONG, "libgit2 1.9 is built without ssh")
    (absent,) = of_state(tmp_path / "none")
    assert absent.hint == f"install -d -m 0700 {tmp_path}/none  # for gitboot's user"
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "manifest.json").write_bytes(os.urandom(64))
    found = [each.message for each in of_output(tmp_path, tmp_path, servers=10**15) if each.health is Health.WRONG]
    unreadable, small = found
    assert "cannot be read" in unreadable
    assert small.endswith("but the output tree of the fleet has about 6,000,000,000,000,000")


def test_the_ledger_that_the_fleet_names_is_checked(tmp_path: Path) -> None:
    with Rack(tmp_path, named=False) as rack:
        rack.add("web01", provision=1)
        rack.push()
        rack.once()
        said = typed("doctor", "--state", rack.state, "--credentials", rack.credentials).out
        assert "failed   ledger       the Fleet names no ledger, so gitboot sets no boot override of 1 server" in said
        assert f"provisioning: {{ledger: {rack.ledger()}}}  # make sure that no other instance" in said
        rack.settings += f", provisioning: {{ledger: {uuid_of('another')}}}"
        rack.push()
        assert rack.once("--allow-takeover").code == Exit.PARTIAL
        said = " ".join(typed("doctor", "--state", rack.state, "--credentials", rack.credentials).out.split())
        assert f"the Fleet names another ledger than {rack.ledger()}, so this instance is a standby" in said


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_finding_r13_a_check_is_printed_once_and_fits_the_terminal(
    rack: Rack, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    result = fine("DHCP", "a mirror of several sites can be fetched " * 3)
    monkeypatch.setattr(doctor, "_run_checks", lambda *_: iter([result, result, result]))
    monkeypatch.setenv("COLUMNS", str(columns))
    printed = rack.said("doctor").splitlines()
    assert sum("DHCP" in line for line in printed) == 1
    assert max(map(len, printed)) <= columns
