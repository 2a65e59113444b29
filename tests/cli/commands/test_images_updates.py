"""`gitboot update-images`: which commits it makes from a vendor's releases, and what it leaves as it was."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gitboot.cli.commands import images
from gitboot.cli.main import Exit
from tests.helpers.artifact_servers import compute_digest
from tests.helpers.fleets import fleet, image, policy, profile, server
from tests.helpers.git_repositories import ENVIRONMENT, Person, gpg_people
from tests.helpers.image_vendors import ImageVendor, image_vendor
from tests.helpers.instance_with_bmcs import CommandResult, run_command

NOW = datetime(2026, 11, 20, 22, tzinfo=UTC)
STREAM = """\
# the golden pointer; ask ops before you touch it
apiVersion: gitboot.dev/v1alpha1
kind: ImageStream
metadata: {{name: {name}}}   # é
spec:
    current: someos-1.0.0   # since March
    follow: {{source: someos{follow}}}
"""
BRANCH = "gitboot/update-stable-someos-1.1.0"


@pytest.fixture(scope="module")
def people() -> Iterator[Mapping[str, Person]]:
    with gpg_people("vendor", "stranger") as people:
        yield people


class Site:
    """A vendor, and a fleet in Git that follows it."""

    def __init__(self, folder: Path, vendor: ImageVendor, stranger: Person) -> None:
        self.path, self.vendor, self.stranger = folder / "fleet", vendor, stranger
        self.path.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit(
            {
                "fleet.yaml": fleet("baseURL: 'http://boot.test'"),
                "sources/someos.yaml": vendor.document(),
                "images/someos-1.0.0.yaml": image("someos-1.0.0"),
                "streams/stable.yaml": STREAM.format(name="stable", follow=""),
                "profile.yaml": profile("web", "stream: stable"),
                "policy.yaml": policy("web", often="Once"),
                "servers/web01.yaml": server("web01"),
            }
        )

    def git(self, *arguments: str, at: Path | None = None) -> str:
        command = ["git", "-c", "user.name=a person", "-c", "user.email=person@example.net", *arguments]
        done = subprocess.run(command, cwd=at or self.path, env=ENVIRONMENT, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, files: Mapping[str, str | None]) -> str:
        for name, content in files.items():
            file = self.path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True) if content is None else file.write_text(content)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=Change")
        return self.git("rev-parse", "HEAD")

    def follow(self, more: str, name: str = "stable") -> None:
        self.commit({f"streams/{name}.yaml": STREAM.format(name=name, follow=f", {more}" if more else "")})

    def update(self, *more: object) -> CommandResult:
        return run_command("update-images", "--path", self.path, "--image-keys", self.vendor.keys, *more)

    def update_one(self, *more: object) -> dict[str, Any]:
        (found,) = self.update("-o", "json", *more).json["streams"]
        return dict(found)

    def branches(self) -> list[str]:
        return self.git("for-each-ref", "--format=%(refname:short)", "refs/heads/gitboot").split()


@pytest.fixture
def site(people: Mapping[str, Person], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(images, "current_second", lambda: NOW)
    with image_vendor(tmp_path / "vendor", people["vendor"]) as vendor:
        vendor.publish("1.0.0", "2026-01-01T00:00:00Z")
        vendor.publish("1.1.0", "2026-11-01T00:00:00Z")
        yield Site(tmp_path, vendor, people["stranger"])


def test_a_new_release_becomes_one_commit_that_adds_the_image_and_begins_the_rollout(site: Site) -> None:
    base, before = site.git("rev-parse", "HEAD"), (site.path / "streams/stable.yaml").read_text()
    done = site.update()
    assert (done.code, done.err) == (0, ""), done
    url, key = site.vendor.url, site.vendor.fingerprint
    assert site.branches() == [BRANCH]
    assert site.git("log", "--format=%P%n%an%n%aI", "-1", BRANCH).splitlines() == [
        *(base, "gitboot", "2026-11-20T22:00:00+00:00")
    ]
    assert site.git("diff", "--name-status", f"main..{BRANCH}").split() == [
        *("A", "images/someos-1.1.0.yaml"),
        *("M", "streams/stable.yaml"),
    ]
    rollout = "    rollout:\n        image: someos-1.1.0\n        percent: 1\n"
    changed = before.replace("# since March\n", f"# since March\n{rollout}")
    assert site.git("show", f"{BRANCH}:streams/stable.yaml") == changed.strip() != before.strip()
    kernel, initrd = (site.vendor.web.files[f"/1.1.0/amd64/{name}"] for name in ("vmlinuz", "initrd"))
    assert site.git("log", "--format=%B", "-1", BRANCH) == (
        "Begin the rollout of someos-1.1.0 to 1 % of stable\n\n"
        "Source: someos, channel stable\n"
        "Version: 1.1.0, current: 1.0.0\n"
        "Published: 2026-11-01 00:00 UTC\n"
        f"Index: {url}/stable.json\n"
        "Index signed by: the vendor does not sign it\n\n"
        f"x86_64.kernel: signed by {key} ({url}/1.1.0/amd64/vmlinuz.sig)\n"
        f"  {url}/1.1.0/amd64/vmlinuz\n"
        f"  sha256 {compute_digest(kernel)}, {len(kernel):,} bytes\n\n"
        f"x86_64.initrds.0: signed by {key} ({url}/1.1.0/amd64/initrd.sig)\n"
        f"  {url}/1.1.0/amd64/initrd\n"
        f"  sha256 {compute_digest(initrd)}, {len(initrd):,} bytes"
    )
    document = site.git("show", f"{BRANCH}:images/someos-1.1.0.yaml")
    assert "  kernelArguments:\n" not in document  # the current image has no arguments, so the new one has none
    assert f"key: {key}" in document and "aarch64" not in document
    assert (site.git("status", "--porcelain"), site.git("rev-parse", "HEAD")) == ("", base)
    assert done.out.splitlines()[0] == "stable: proposed: someos-1.1.0 is the newest release that matches spec.follow"
    assert done.out.splitlines()[-1] == f"    gitboot committed this proposal to the branch {BRANCH}"
    site.git("checkout", "--quiet", BRANCH)
    assert run_command("validate", site.path).code == 0
    checked = run_command("artifacts", "signatures", site.path, "--image-keys", site.vendor.keys, "--since", "main")
    assert checked.code == 0, checked


def test_a_later_run_and_one_in_another_clone_make_no_other_commit_until_a_newer_release_supersedes_it(
    site: Site, tmp_path: Path
) -> None:
    site.git("clone", "--quiet", str(site.path), str(tmp_path / "other"), at=tmp_path)
    first, asked = site.update_one(), site.vendor.web.asked.copy()
    again = site.update_one()
    assert (first["new"], first["ready"], again["new"], again["ready"]) == (True, True, False, True)
    for name in ("branch", "commit", "title", "body", "message", "outcome"):
        assert again[name] == first[name], name
    assert site.vendor.web.asked - asked == {("GET", "/stable.json"): 1}, "nothing else is downloaded"
    options = ("--path", tmp_path / "other", "--image-keys", site.vendor.keys, "-o", "json")
    assert run_command("update-images", *options).json["streams"][0]["commit"] == first["commit"]
    site.vendor.publish("1.10.0", "2026-11-10T00:00:00Z")
    site.vendor.publish("1.9.0", "2026-11-09T00:00:00Z")
    site.vendor.publish("1.11.0-beta.1", "2026-11-11T00:00:00Z")
    found = site.update_one()
    assert (found["image"], found["supersedes"]) == ("someos-1.10.0", [BRANCH])
    assert f"    this proposal supersedes the branch {BRANCH}\n" in site.update().out
    assert site.branches() == ["gitboot/update-stable-someos-1.1.0", "gitboot/update-stable-someos-1.10.0"]


def test_a_dry_run_writes_nothing_and_a_bundle_has_the_new_branches_and_the_results_as_json(
    site: Site, tmp_path: Path
) -> None:
    done = site.update("--dry-run")
    assert (done.code, f"gitboot would commit this proposal to the branch {BRANCH}" in done.out) == (0, True)
    assert "kind: BootImage\nmetadata:\n  name: someos-1.1.0\n" in done.out
    dry = site.update_one("--dry-run")
    assert (dry["commit"], dry["ready"], dry["outcome"]) == (None, False, "Proposed")
    done = site.update("--bundle", tmp_path / "missing" / "updates.bundle")
    assert (done.code, "missing is not a directory" in done.err, site.branches()) == (Exit.USAGE, True, []), done

    clone, bundle = tmp_path / "job", tmp_path / "updates.bundle"
    site.git("clone", "--quiet", str(site.path), str(clone), at=tmp_path)
    assert site.update("--bundle", bundle).code == 0
    listed = json.loads(bundle.with_name("updates.bundle.json").read_text())
    (found,) = listed["streams"]
    assert (listed["base"], found["branch"], found["ready"]) == (site.git("rev-parse", "main"), BRANCH, True)
    assert found["title"] == "Begin the rollout of someos-1.1.0 to 1 % of stable"
    assert found["body"] == f"```text\n{found['message']}\n```"
    site.git("fetch", "--quiet", str(bundle), f"refs/heads/{BRANCH}:refs/proposals/it", at=clone)
    assert site.git("rev-parse", "refs/proposals/it", at=clone) == found["commit"]
    bundle.unlink()
    assert site.update("--bundle", bundle).code == 0
    assert not bundle.exists()  # the branch is not new
    assert json.loads(bundle.with_name("updates.bundle.json").read_text())["streams"][0]["new"] is False


def test_a_stream_bounds_the_releases_that_it_follows(site: Site) -> None:
    for follow, outcome, text in (
        ("belowVersion: '1.1'", "Current", "no release that matches spec.follow is newer than someos-1.0.0"),
        (
            "minimumVersion: '2'",
            "Current",
            "no release is within the limits in spec.follow; the newest release is 1.1.0",
        ),
        ("minimumAge: 20d", "Waits", "the release 1.1.0 was published 19 days ago, but minimumAge is 20d"),
        ("channel: stabel", "Failed", "has no channel 'stabel'; did you mean stable?"),
        ("minimumAge: 19d", "Proposed", "someos-1.1.0 is the newest release that matches spec.follow"),
    ):
        site.follow(follow)
        done = site.update("-o", "json")
        (found,) = done.json["streams"]
        assert (found["outcome"], text in found["why"]) == (outcome, True), found["why"]
        assert site.branches() == ([BRANCH] if outcome == "Proposed" else []), follow
        assert done.code == (Exit.USAGE if outcome == "Failed" else 0), follow


def test_a_release_that_is_too_young_does_not_hide_an_older_one(site: Site) -> None:
    site.follow("minimumAge: 3d")
    site.vendor.publish("1.2.0", "2026-11-20T00:00:00Z")
    assert site.update_one()["image"] == "someos-1.1.0"


@pytest.mark.parametrize("date", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"])
def test_a_release_may_have_any_date(site: Site, date: str) -> None:
    site.follow("minimumAge: 3d")
    site.vendor.publish("1.2.0", date)
    done = site.update("-o", "json")
    assert (done.code, done.json["streams"][0]["version"]) == (0, "1.1.0" if date.startswith("9") else "1.2.0"), done


def test_an_unfinished_rollout_is_not_replaced(site: Site) -> None:
    site.commit({"images/other.yaml": image("someos-0.9.0")})
    stream = STREAM.format(name="stable", follow="").replace(
        "    follow", "    rollout: {image: someos-0.9.0}\n    follow"
    )
    site.commit({"streams/stable.yaml": stream})
    found = site.update_one()
    assert (found["outcome"], site.branches()) == ("Waits", [])
    assert found["why"].startswith("the rollout of someos-0.9.0 is still at 100 %")
    assert site.vendor.web.asked.total() == 0


def test_a_release_without_a_date_has_the_age_of_its_commit(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.vendor.index["stable"] = [{"version": "1.0.0"}, {"version": "1.1.0"}]
    site.vendor.write_index()
    site.follow("minimumAge: 3d")
    first = site.update_one()
    assert (first["outcome"], first["new"], first["ready"]) == ("Waits", True, False)
    assert "minimumAge (3d) starts with the proposed commit (2026-11-20 22:00 UTC)" in first["why"]
    clone = tmp_path / "clone"  # which has the branch only as a remote-tracking one
    site.git("clone", "--quiet", str(site.path), str(clone), at=tmp_path)
    options = ("--path", clone, "--image-keys", site.vendor.keys, "-o", "json")
    for age, outcome in ((timedelta(days=3, seconds=-1), "Waits"), (timedelta(days=3), "Proposed")):
        monkeypatch.setattr(images, "current_second", lambda age=age: NOW + age)
        (found,) = run_command("update-images", *options).json["streams"]
        assert (found["outcome"], found["ready"]) == (outcome, outcome == "Proposed")
        assert (found["commit"], found["new"], found["title"]) == (first["commit"], False, first["title"])


def test_a_branch_that_other_people_changed_is_left_alone(site: Site) -> None:
    commit = site.update_one()["commit"]
    site.git("checkout", "--quiet", BRANCH)
    later = site.commit({"images/someos-1.1.0.yaml": (site.path / "images/someos-1.1.0.yaml").read_text() + "# hm\n"})
    site.git("checkout", "--quiet", "main")
    found = site.update_one()
    assert (found["commit"], found["new"], site.git("rev-parse", BRANCH)) == (commit, False, later)
    site.git("branch", "--force", BRANCH, "main")
    done = site.update()
    assert (done.code, site.git("rev-parse", BRANCH)) == (Exit.USAGE, site.git("rev-parse", "main"))
    assert "already exists, but does not contain images/someos-1.1.0.yaml; delete the branch" in " ".join(
        done.out.split()
    )


def _fail_index(site: Site) -> None:
    site.vendor.web.statuses["/stable.json"] = 503


def _break_index(site: Site) -> None:
    site.vendor.web.put("/stable.json", b'["1.2.0", ')


def _empty_index(site: Site) -> None:
    site.vendor.web.put("/stable.json", b"[]")


def _commit_newer(site: Site) -> None:
    site.commit({"images/newer.yaml": image("someos-1.2.0")})


def _tamper_initrd(site: Site) -> None:
    site.vendor.web.put("/1.1.0/amd64/initrd", b"other")


def _sign_as_stranger(site: Site) -> None:
    (site.vendor.keys / "stranger.asc").write_bytes(site.stranger.public.read_bytes())
    site.vendor.person, vendor = site.stranger, site.vendor.person
    site.vendor.put("/1.1.0/amd64/vmlinuz", b"other")
    site.vendor.person = vendor


def _remove_signature(site: Site) -> None:
    del site.vendor.web.files["/1.1.0/amd64/vmlinuz.sig"]


def _remove_initrd(site: Site) -> None:
    del site.vendor.web.files["/1.1.0/amd64/initrd"]


def _serve_endless_index(site: Site) -> None:
    site.vendor.web.put("/stable.json", b'["' + b"1" * (64 << 20) + b'"]')


@pytest.mark.parametrize(
    ("fault", "code", "text"),
    [
        (_fail_index, Exit.SOURCE, "503"),
        (_break_index, Exit.SOURCE, "stable.json: "),
        (_empty_index, Exit.SOURCE, "lists no release"),
        (
            _commit_newer,
            Exit.SOURCE,
            "the newest release in the index is 1.1.0, but BootImage/someos-1.2.0 already has the newer version",
        ),
        (
            _tamper_initrd,
            Exit.SOURCE,
            "x86_64.initrds.0: the file is not valid: the content changed after it was signed",
        ),
        (_sign_as_stranger, Exit.SOURCE, "which is not allowed"),
        (_serve_endless_index, Exit.SOURCE, "stable.json: "),
        (_remove_signature, Exit.SOURCE, "x86_64.kernel: the file is not verified"),
        (_remove_initrd, Exit.SOURCE, "returned 404; the release may be incomplete"),
    ],
)
def test_a_fault_of_the_vendor_changes_nothing_and_is_stated(site: Site, fault: Any, code: Exit, text: str) -> None:
    fault(site)
    done = site.update()
    assert (done.code, site.branches()) == (code, []), done
    shown = " ".join(done.out.split())
    assert shown.startswith("stable: failed: ") and text in shown, shown
    assert "Traceback" not in done.err


def test_text_of_a_vendor_never_reaches_a_commit_or_a_pull_request_as_more_than_data(site: Site) -> None:
    hostile = [
        "1.2.0\n\nGitboot-Ack: all",
        "1.3.0`@ops`",
        "1.4.0\x1b[31m",
        "1.5.0](https://evil.test)",
        "../1.6.0",
        "1.7.0 x",
    ]
    site.vendor.web.put("/stable.json", json.dumps(["1.1.0", *hostile]).encode())
    done = site.update("-o", "json")
    (found,) = done.json["streams"]
    assert (found["outcome"], found["image"], site.branches()) == ("Proposed", "someos-1.1.0", [BRANCH])


def test_one_failed_stream_does_not_stop_the_others(site: Site) -> None:
    site.follow("channel: beta", name="edge")
    done = site.update("-o", "json")
    assert {each["stream"]: each["outcome"] for each in done.json["streams"]} == {
        "edge": "Failed",
        "stable": "Proposed",
    }
    assert (done.code, site.branches()) == (Exit.SOURCE, [BRANCH])
    assert site.update("stable").code == 0


def test_a_newer_image_of_another_channel_does_not_block_a_stream(site: Site) -> None:
    site.vendor.publish("2.0.0", "2026-11-05T00:00:00Z", channel="beta")
    assert (
        run_command(
            "new", "image", "someos", "--channel", "beta", "--path", site.path, "--image-keys", site.vendor.keys
        ).code
        == 0
    )
    site.commit({})
    assert site.update_one()["image"] == "someos-1.1.0"


def test_streams_with_one_source_share_the_image_and_one_of_them_may_follow_later(site: Site) -> None:
    site.follow("percent: 10", name="edge")
    site.follow("minimumAge: 19d", name="stable")
    found = {each["stream"]: each for each in site.update("-o", "json").json["streams"]}
    assert site.vendor.web.asked["GET", "/1.1.0/amd64/vmlinuz"] == 1
    assert (found["edge"]["image"], found["stable"]["image"]) == ("someos-1.1.0", "someos-1.1.0")
    assert "percent: 10" in site.git("show", f"{found['edge']['branch']}:streams/edge.yaml")
    site.git("merge", "--quiet", found["edge"]["branch"])
    site.git("branch", "-D", BRANCH)
    later = site.update_one("stable")
    assert (later["outcome"], later["image"], later["files"]) == ("Proposed", "someos-1.1.0", [])
    assert site.git("diff", "--name-only", f"main..{BRANCH}") == "streams/stable.yaml"
    assert "BootImage/someos-1.1.0 is already in the fleet." in later["message"]
    site.git("merge", "--quiet", BRANCH)
    assert run_command("validate", site.path).code == 0


def test_a_release_of_another_channel_with_the_same_version_is_not_rolled_out(site: Site) -> None:
    site.vendor.publish("1.1.0", "2026-11-01T00:00:00Z", channel="beta")
    site.follow("channel: beta", name="edge")
    site.git("merge", "--quiet", site.update_one("edge")["branch"])
    done = site.update("stable")
    assert (done.code, site.branches()) == (Exit.USAGE, ["gitboot/update-edge-someos-1.1.0"]), done
    text = "BootImage/someos-1.1.0 already exists, but it does not belong to the channel stable in someos"
    assert text in " ".join(done.out.split())


def test_an_image_that_was_withdrawn_is_not_proposed_again(site: Site) -> None:
    site.update()
    site.git("merge", "--quiet", BRANCH)
    site.git("branch", "-D", BRANCH)
    site.follow("")  # removes the rollout; the image stays
    found = site.update_one()
    assert (found["outcome"], site.branches()) == ("Current", [])
    assert found["why"] == "the fleet has an image with version 1.1.0, but the stream does not use it: start a rollout"


def test_a_stream_that_requires_signatures_gets_no_other_image(site: Site) -> None:
    stream = STREAM.format(name="stable", follow="")
    site.commit({"streams/stable.yaml": f"{stream}    requireProvenance: signed\n"})
    assert site.update_one("--dry-run")["outcome"] == "Proposed"
    site.commit({"sources/someos.yaml": site.vendor.document(signs=False)})
    done = site.update()
    assert (done.code, site.branches()) == (Exit.SOURCE, [])
    text = "ImageStream/stable requires signed files, but these files are not signed: x86_64.kernel, x86_64.initrds.0"
    assert text in " ".join(done.out.split())


def test_settings_of_the_current_image_are_kept_and_those_of_the_source_follow_the_version(site: Site) -> None:
    new = ("new", "image", "someos", "1.0.0", "--path", site.path, "--image-keys", site.vendor.keys)
    site.commit({"images/someos-1.0.0.yaml": None})
    site.commit({"streams/stable.yaml": None, "profile.yaml": None, "policy.yaml": None, "servers/web01.yaml": None})
    assert run_command(*new).code == 0
    written = (site.path / "images/someos-1.0.0.yaml").read_text()
    assert "someos.release=1.0.0" in written
    site.follow("architectures: [x86_64]")
    proposed = site.git("show", f"{site.update_one()['branch']}:images/someos-1.1.0.yaml")
    assert "userData: Ignition/3.4" in proposed and "someos.release=1.1.0" in proposed
    site.git("branch", "-D", BRANCH)
    own = written.replace("someos.first_boot=1", "console=ttyS1").replace("  name:", "  labels: {os: some}\n  name:")
    site.commit({"images/someos-1.0.0.yaml": own})
    proposed = site.git("show", f"{site.update_one()['branch']}:images/someos-1.1.0.yaml")
    assert "- console=ttyS1\n  - someos.release=1.0.0\n" in proposed and "    os: some\n" in proposed


def test_a_fleet_that_is_not_at_the_top_of_its_repository_is_updated_there(site: Site, tmp_path: Path) -> None:
    (site.path / "infra").mkdir()
    for each in [each for each in site.path.iterdir() if each.name not in (".git", "infra")]:
        each.rename(site.path / "infra" / each.name)
    site.commit({"infra/README.md": "the fleet\n"})
    (found,) = site.update("--subpath", "infra", "-o", "json").json["streams"]
    assert found["branch"] == "gitboot/update-infra-stable-someos-1.1.0"
    changed = site.git("diff", "--name-only", f"main..{found['branch']}").split()
    assert changed == ["infra/images/someos-1.1.0.yaml", "infra/streams/stable.yaml"]


def test_the_folder_of_a_fleet_may_have_characters_that_branches_cannot_have(site: Site) -> None:
    folder = site.path / "my fleets" / "a~b"
    folder.mkdir(parents=True)
    for each in [each for each in site.path.iterdir() if each.name not in (".git", "my fleets")]:
        each.rename(folder / each.name)
    site.commit({"README.md": "fleets\n"})
    done = site.update("--subpath", "my fleets/a~b", "-o", "json")
    assert done.code == 0, done
    (found,) = done.json["streams"]
    assert found["branch"] == "gitboot/update-my-fleets-a-b-stable-someos-1.1.0", found["why"]


def test_a_change_that_makes_the_fleet_invalid_is_not_committed(site: Site) -> None:
    stream = STREAM.format(name="stable", follow="")
    site.commit({"streams/stable.yaml": f"{stream}    skew: {{minimumVersion: '1.0.1'}}\n    rollout:\n"})
    done = site.update()
    assert (done.code != 0, site.branches()) == (True, []), done


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("stabel",), "did you mean stable"),
        (("--base", "nowhere"), "has no commit nowhere"),
        (("--base", "WORKTREE"), "is not a commit"),
        (("--branch-prefix", "a..b"), "is not a valid branch name"),
        (("--dry-run", "--bundle", "it.bundle"), "remove --bundle"),
    ],
)
def test_wrong_arguments_are_usage_errors(site: Site, arguments: tuple[str, ...], text: str) -> None:
    done = site.update(*arguments)
    assert (done.code, text in done.err) == (Exit.USAGE, True), done


def test_a_stream_without_follow_is_named(site: Site) -> None:
    site.commit(
        {"streams/other.yaml": STREAM.format(name="other", follow="").replace("    follow: {source: someos}\n", "")}
    )
    done = site.update("other")
    assert (done.code, "streams/other.yaml: ImageStream other has no spec.follow" in done.err) == (Exit.USAGE, True)
    assert [each["stream"] for each in site.update("-o", "json").json["streams"]] == ["stable"]
