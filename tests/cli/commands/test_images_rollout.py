"""`gitboot rollout advance` beside a running instance: what it reads, when it writes, and what it leaves as it was."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from gitboot.cli.main import Exit
from gitboot.jsonio import format_instant
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.policy_selection import compute_rollout_percentage
from gitboot.resolve.provisioning_record import Record, encode_records, make_record_fields
from tests.helpers.cases import for_each
from tests.helpers.fleets import fleet, image, make_mac, make_uuid, policy, profile, server, write_configuration
from tests.helpers.http_peers import WebRequest, WebResponse, web_server
from tests.helpers.instance_with_bmcs import CommandResult, run_command
from tests.helpers.running_instance import Instance, Repository, copy_live_folder, eventually, running


def joining_percent(name: str) -> int:
    return compute_rollout_percentage("stable", SystemUuid(make_uuid(name)))


NAMES = sorted((f"web{number:02}" for number in range(6)), key=joining_percent)
FIRST = sorted(NAMES[:2])
PERCENT = joining_percent(NAMES[1])
STREAM = f"""\
# the golden pointer; ask ops before you touch it
apiVersion: gitboot.dev/v1alpha1
kind: ImageStream
metadata: {{name: stable}}   # é
spec:
    current: flatcar-1
    rollout:
        image:   "flatcar-2"
        percent:   {PERCENT}   # percent: raised by the bot
---
"""
FLEET = {
    "fleet.yaml": fleet("baseURL: 'http://boot.test'"),
    "images.yaml": f"{image('flatcar-1')}---\n{image('flatcar-2')}",
    "streams/stable.yaml": f"{STREAM}{profile('web', 'stream: stable')}",
    "policy.yaml": policy("web", often="Once"),
    **{f"servers/{name}.yaml": server(name, spec="provision: 1") for name in NAMES},
}
STEPS = ("--steps", f"1%,{PERCENT},60 %,100", "--after", "95%")
ACCEPTED = "--accept-fetched"


class Site:
    """An instance that follows a repository, and a clone of it as CI has one."""

    def __init__(self, folder: Path, repository: Repository, instance: Instance) -> None:
        self.output, self.repository, self.instance = folder / "output", repository, instance
        self.clone = folder / "clone"
        self.git("clone", "--quiet", str(repository.bare), str(self.clone), at=folder)

    def git(self, *arguments: str, at: Path | None = None) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=at or self.clone, check=True, capture_output=True, text=True
        ).stdout.strip()

    def advance(self, *more: object, records: object = None, accepts: tuple[str, ...] = (ACCEPTED,)) -> CommandResult:
        where = ("--records", records or self.instance.url, "--path", self.clone, *accepts)
        return run_command("rollout", "advance", "stable", *STEPS, *where, *more)

    def boot(self, name: str) -> None:
        assert self.instance.get(f"/v1/boot/{make_mac(name).replace(':', '-')}/boot.ipxe").status_code == 200


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("rollout")
    repository = Repository.create(folder / "git")
    repository.push(FLEET, "Begin")
    options = ("--poll", "3600", "--check-assets", "off", *write_configuration(max_update_percent=100))
    with running(repository.bare, folder, *options, records="fresh") as instance:
        yield Site(folder, repository, instance)


def test_a_rollout_takes_its_next_step_when_machines_have_proven_the_last_one(site: Site, tmp_path: Path) -> None:
    before, head = (site.clone / "streams/stable.yaml").read_bytes(), site.git("rev-parse", "HEAD")
    waits = site.advance("-o", "json")
    assert waits.code == Exit.WAITS, waits
    assert (waits.json["outcome"], waits.json["unproven"], waits.json["proposal"]) == ("Waits", FIRST, None)

    site.boot(FIRST[0])
    by_url = eventually(lambda: (found := site.advance("-o", "json")).json["begun"] == FIRST[:1] and found)
    assert (by_url.code, by_url.json["unproven"]) == (Exit.WAITS, FIRST[1:])
    site.boot(FIRST[1])
    dry = eventually(lambda: (found := site.advance("--dry-run")).code == 0 and found)
    assert dry.out.splitlines()[1:] == [
        "streams/stable.yaml: percent: 60",
        "gitboot would commit the change to the branch gitboot/rollout-stable-60",
    ]
    assert site.git("branch", "--list", "gitboot/*") == ""

    made = site.advance("-o", "json", records=site.output)
    assert (made.code, made.json["proposal"]["made"], made.json["next"]) == (0, "Written", 60)
    name = made.json["proposal"]["branch"]
    assert site.git("log", "-1", "--format=%P%n%an%n%B", name).splitlines() == [
        *(head, "gitboot", "Roll flatcar-2 out to 60 % of stable", ""),
        f"Provisioned with this image at {PERCENT} %: 0 of 2 servers.",
        "In addition, 2 servers fetched the boot but did not report completion.",
    ]
    changed = before.replace(f"percent:   {PERCENT}   #".encode(), b"percent:   60   #")
    assert site.git("show", f"{name}:streams/stable.yaml").encode() == changed.rstrip() != before.rstrip()
    assert site.git("diff", "--name-only", f"HEAD..{name}") == "streams/stable.yaml"
    assert (site.git("status", "--porcelain"), site.git("rev-parse", "HEAD")) == ("", head)

    again = site.advance(records=site.output / "ops/records")
    unchanged = f"the change is already on the branch {name}, so gitboot did not commit it again"
    assert (again.code, again.out.splitlines()[-1]) == (0, unchanged)
    site.git("branch", "of-before", "HEAD")
    earlier = site.advance("--branch", "of-before", records=site.output)
    assert earlier.code == Exit.USAGE
    assert "of-before already exists and contains a different streams/stable.yaml" in earlier.err
    alone = site.advance("--no-commit", "-o", "json")
    assert (alone.code, alone.json["proposal"]["branch"]) == (0, None)
    assert (site.clone / "streams/stable.yaml").read_bytes() == changed
    ahead = site.advance("--no-commit")  # the present file is unknown to the instance
    assert (
        ahead.code,
        f"(flatcar-2 at {PERCENT} %) differs from the one here (flatcar-2 at 60 %)" in " ".join(ahead.out.split()),
    ) == (Exit.WAITS, True)
    site.git("checkout", "--quiet", ".")
    assert site.advance("--rev", name).out == ahead.out

    copy = tmp_path / "copy"
    copy_live_folder(site.output, copy)
    assert site.advance("--branch", "other", records=copy).code == 0
    of_old = json.loads((copy / "ops/status.json").read_bytes())
    said = {each: "2026-01-01T00:00:00Z" for each in ("at", "clock") if each in of_old}
    assert said
    (copy / "ops/status.json").write_text(json.dumps({**of_old, **said}))
    old = site.advance("--branch", "another", records=copy)
    assert (old.code, "is from 2026-01-01T00:00:00Z, so it is not current" in old.out) == (Exit.WAITS, True)
    doubt = {"type": "RecordsVerified", "status": False, "reason": "NewLedger", "message": "a new one"}
    (copy / "ops/status.json").write_text(json.dumps({**of_old, "conditions": [doubt]}))
    doubted = site.advance("--branch", "another", records=copy)
    condition = "the instance's condition RecordsVerified is false (NewLedger)"
    assert (doubted.code, condition in doubted.out) == (Exit.WAITS, True)
    assert site.git("branch", "--list", "another") == ""


def test_finding_r3_a_fetch_alone_never_advances_a_rollout(site: Site) -> None:
    """A stranger fetches the boot scripts of both servers with a plain HTTP client. Neither server was switched on."""
    before = site.git("branch", "--list", "gitboot/*")
    for name in FIRST:
        site.boot(name)
    eventually(lambda: site.advance("--dry-run").code == 0)
    for more in (("--branch", "by-a-fetch"), ("--no-commit",), ("--dry-run",)):
        refused = site.advance(*more, accepts=())
        assert refused.code == Exit.USAGE, refused
        for part in ("fleet.yaml", "spec.provisioning.evidence is Fetched", "evidence: Reported", ACCEPTED):
            assert part in refused.err
    assert (site.git("branch", "--list", "gitboot/*"), site.git("branch", "--list", "by-a-fetch")) == (before, "")
    assert site.git("status", "--porcelain") == ""


SITES = ("ams2", "fra1")
INSTALLED = Record(provision=1, image="flatcar-2", evidence="Reported")


def write_output(folder: Path, commit: str, ledger: str, records: Mapping[str, Record]) -> str:
    """Write the status and the records of an instance, and return the folder."""
    (folder / "ops/records").mkdir(parents=True)
    status = {"applied": {"commit": commit}, "at": format_instant(datetime.now(UTC)), "ledger": ledger}
    (folder / "ops/status.json").write_text(json.dumps(status))
    by_uuid = {SystemUuid(make_uuid(name)): record for name, record in records.items()}
    (folder / "ops/records/00.json").write_bytes(encode_records(by_uuid))
    return str(folder)


def test_a_rollout_advances_with_the_records_of_the_instances_of_all_sites(tmp_path: Path) -> None:
    """The second server was at the first site before, whose instance still has its record."""
    ledgers = [make_uuid(site) for site in SITES]
    sites = ", ".join(
        f"{{name: {site}, select: {{matchLabels: {{site: {site}}}}}, baseURL: 'http://{site}.test', ledger: {ledger}}}"
        for site, ledger in zip(SITES, ledgers, strict=True)
    )
    repository = Repository.create(tmp_path / "git")
    commit = repository.push(
        {
            **FLEET,
            "fleet.yaml": fleet(f"baseURL: 'http://boot.test', provisioning: {{evidence: Reported}}, sites: [{sites}]"),
            **{
                f"servers/{name}.yaml": server(name, f"site: {SITES[NAMES.index(name) % 2]}", spec="provision: 1")
                for name in NAMES
            },
        }
    )
    first = write_output(tmp_path / "1", commit, ledgers[0], dict.fromkeys(NAMES[:2], INSTALLED))
    second = write_output(tmp_path / "2", commit, ledgers[1], {NAMES[1]: INSTALLED})
    pending = write_output(tmp_path / "3", commit, ledgers[1], {NAMES[1]: Record()})
    for outputs, code, unknown, unproven in (
        ((first, second), 0, [], []),
        ((first,), Exit.WAITS, [NAMES[1]], []),
        ((second,), Exit.WAITS, [NAMES[0]], []),
        ((first, pending), Exit.WAITS, [], [NAMES[1]]),
    ):
        places = [word for output in outputs for word in ("--records", output)]
        arguments = ("stable", *STEPS, "--path", repository.work, "--dry-run", "-o", "json", *places)
        found = run_command("rollout", "advance", *arguments)
        assert (found.code, found.json["unknown"], found.json["unproven"]) == (code, unknown, unproven), found


def push_fleet(place: Path, folder: str = "") -> tuple[Repository, str]:
    """Return a repository with a fleet in ``folder`` whose installers report, and its commit."""
    repository = Repository.create(place / "git")
    settings = fleet("baseURL: 'http://boot.test', provisioning: {evidence: Reported}")
    files = {f"{folder}/{path}".lstrip("/"): text for path, text in {**FLEET, "fleet.yaml": settings}.items()}
    return repository, repository.push(files)


@for_each(
    ("folder", "branch"),
    [("", "stable-60"), ("sites/lon1", "sites-lon1-stable-60"), ("my fleet:~a..b", "my-fleet-a-b-stable-60")],
)
def test_the_branch_of_a_rollout_names_the_folder_of_the_fleet(folder: str, branch: str) -> None:
    with TemporaryDirectory() as temporary:
        place = Path(temporary)
        repository, commit = push_fleet(place, folder)
        output = write_output(place / "output", commit, make_uuid("ledger"), dict.fromkeys(FIRST, INSTALLED))
        arguments = ("--path", repository.work / folder, "--records", output, "-o", "json")
        found = run_command("rollout", "advance", "stable", *STEPS, *arguments)
        assert (found.code, found.err) == (0, "")
        assert found.json["proposal"]["branch"] == f"gitboot/rollout-{branch}"


@for_each(
    ("status", "record", "code", "said"),
    [
        ({}, {}, Exit.FINE, "2 of 2 servers have flatcar-2"),
        ({"at": "yesterday"}, {}, Exit.SOURCE, "the status from the instance is not valid (Invalid RFC3339"),
        ({"at": "2026-11-20T12:00:00"}, {}, Exit.SOURCE, "the status from the instance is not valid (Expected"),
        ({"at": "9999-12-31T23:59:59-14:00"}, {}, Exit.SOURCE, "not valid (the year 9999 is not possible)"),
        ({"conditions": None}, {}, Exit.SOURCE, "not valid (Expected `array`, got `null` - at `$.conditions`)"),
        ({"conditions": [{"type": "X"}]}, {}, Exit.SOURCE, "not valid (Object missing required field `status`"),
        ({"applied": {"commit": None}}, {}, Exit.USAGE, "the instance has not applied a commit yet"),
        ({"applied": {"commit": "main"}}, {}, Exit.SOURCE, "use the same version of gitboot as the instance"),
        ({"applied": {"commit": "c" * 40}}, {}, Exit.USAGE, "The instance has applied this commit: run `git fetch`"),
        ({}, {"runs": []}, Exit.SOURCE, f"the record of {FIRST[0]} from the instance is not valid"),
        ({}, {"provision": -1}, Exit.SOURCE, "use the same version of gitboot as the instance"),
    ],
)
def test_an_invalid_status_or_record_of_an_instance_proves_nothing(
    status: dict[str, Any], record: dict[str, Any], code: Exit, said: str
) -> None:
    uuids = {f"/api/v1/servers/{name}": make_uuid(name) for name in NAMES}

    def answer(request: WebRequest) -> WebResponse:
        content: dict[str, Any] = {"applied": {"commit": commit}, "at": format_instant(datetime.now(UTC)), **status}
        if (uuid := uuids.get(request.path)) is not None:
            content = {"uuid": uuid, "provisioned": {**make_record_fields(INSTALLED), **record}}
        return WebResponse(content=json.dumps(content).encode())

    with TemporaryDirectory() as temporary, web_server(answer) as url:
        repository, commit = push_fleet(Path(temporary))
        arguments = ("--path", repository.work, "--records", url, "--dry-run")
        found = run_command("rollout", "advance", "stable", *STEPS, *arguments)
        assert (found.code, said in " ".join(f"{found.out}{found.err}".split())) == (code, True), found


@pytest.mark.parametrize(
    ("records", "code", "said"),
    [
        ("http://127.0.0.1:9", Exit.SOURCE, "127.0.0.1:9"),
        ("/nowhere", Exit.USAGE, "/nowhere/ops/status.json cannot be read"),
    ],
)
def test_missing_records_prove_nothing(site: Site, records: str, code: Exit, said: str) -> None:
    found = site.advance(records=records)
    assert (found.code, said in found.err, site.git("status", "--porcelain")) == (code, True, "")


@pytest.mark.parametrize("content", [b"{", b"\xe9"])
def test_a_damaged_status_proves_nothing(site: Site, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "copy" / "ops").mkdir(parents=True)
    (tmp_path / "copy" / "ops" / "status.json").write_bytes(content)
    found = site.advance(records=str(tmp_path / "copy"))
    assert (found.code, "copy/ops/status.json cannot be read: " in found.err) == (Exit.USAGE, True), found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rollout", "advance", "stabel", *STEPS), "did you mean stable"),
        (("rollout", "advance", "stable", "--steps", "10,5"), "in ascending order"),
        (("rollout", "advance", "stable", "--steps", "1,200"), "in ascending order"),
        (("rollout", "advance", "stable", "--steps", "1" * 5000), "in ascending order"),
        (("rollout", "advance", "stable", *STEPS, "--after", "0%"), "from 1% to 100%"),
        (("rollout", "advance", "stable", *STEPS, "--after", "1" * 5000), "from 1% to 100%"),
        (("rollout", "advance", "stable", *STEPS, "--branch", "a..b"), "is not a valid branch name"),
        (("rollout", "advance", "stable", *STEPS, "--branch", "HEAD"), "is not a valid branch name"),
        (("rollout", "advance", "stable", *STEPS, "--branch=-x"), "is not a valid branch name"),
        (("rollout", "advance", "stable", *STEPS, "--rev", "nowhere"), "has no commit nowhere"),
        (("rollout", "advance", "stable", *STEPS, "--rev", "HEAD", "--no-commit"), "remove --rev"),
    ],
)
def test_wrong_arguments_are_usage_errors(site: Site, arguments: tuple[str, ...], said: str) -> None:
    found = run_command(*arguments, "--path", site.clone, "--records", site.output)
    assert (found.code, said in found.err) == (Exit.USAGE, True), found
