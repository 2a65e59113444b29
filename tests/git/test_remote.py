"""Git remotes: servers that serve, refuse, hang, break off or send wrong data; and known hosts."""

from __future__ import annotations

import base64
import hmac
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gitboot.errors import BranchMissing, CorruptClone, SourceError, SourceRefused, UsageError
from gitboot.git import clone
from gitboot.git.clone import Source
from gitboot.git.fetch import FetchProcess
from gitboot.git.remote import (
    Password,
    Remote,
    SshKey,
    find_reference,
    get_local_path,
    parse_known_hosts,
)
from tests.git.test_clone import text
from tests.helpers.cases import for_each
from tests.helpers.git_repositories import (
    ENVIRONMENT,
    HttpsServer,
    Relay,
    SshServer,
    WorkTree,
    git_daemon,
    silent_server,
)
from tests.helpers.running_instance import eventually

PASSWORD = Password(password=HttpsServer.PASSWORD)
A_KEY = SshKey(private_key=Path("id"), known_hosts=Path("known_hosts"))


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with SshServer(tmp_path_factory.mktemp("ssh")).running() as server:
        yield server


@pytest.fixture
def ssh_key(ssh: SshServer, tmp_path: Path) -> SshKey:
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(f"[127.0.0.1]:{ssh.port} {ssh.public('ed25519')}\n")
    return SshKey(private_key=ssh.key("client"), passphrase=SshServer.PASSPHRASE, known_hosts=known_hosts)


@pytest.fixture
def https(work: WorkTree, tmp_path: Path) -> Iterator[HttpsServer]:
    with HttpsServer(work.path.parent, tmp_path) as server:
        yield server


@pytest.fixture(scope="module")
def fetcher() -> Iterator[FetchProcess]:
    fetcher = FetchProcess()
    yield fetcher
    fetcher.close()


@pytest.fixture(autouse=True)
def fetch_in_process(fetcher: FetchProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of this is fetched as an instance does it, by a process of its own; one does for all."""
    monkeypatch.setattr(clone, "InProcessFetcher", lambda: fetcher)


# Settings


@for_each(
    ("url", "credentials"),
    [
        ("https://git.example.net/fleet.git", None),
        ("https://git.example.net/fleet.git", PASSWORD),
        ("http://git.example.net/fleet.git", None),
        ("git://git.example.net:9419/fleet.git", None),
        ("ssh://git@git.example.net:2222/fleet.git", A_KEY),
        ("ssh://git@[2001:db8::1]/fleet.git", A_KEY),
        ("git@git.example.net:org/fleet.git", A_KEY),
        ("git.example.net:fleet.git", A_KEY),
        ("file:///srv/fleet", None),
        ("/srv/fleet", None),
        ("./a:b", None),
        ("fleet", None),
    ],
)
def test_a_remote_is_any_url_that_git_accepts(url: str, credentials: Password | SshKey | None) -> None:
    remote = Remote(url=url, credentials=credentials)
    is_local = credentials is None and url.startswith(("/", "./", "file:", "fleet"))
    assert (remote.local_path is not None) == is_local


@for_each(
    ("url", "path"),
    [
        ("/srv/c#.git", "/srv/c#.git"),
        ("/srv/a%20b", "/srv/a%20b"),
        ("file:///srv/c#.git", "/srv/c#.git"),
        ("file:///srv/what?.git", "/srv/what?.git"),
        ("FILE:///srv/a%20b%23%3f", "/srv/a b#?"),
        ("https://git.example.net/srv/x", None),
        ("git.example.net:srv/x", None),
    ],
)
def test_a_local_repository_has_the_path_that_git_reads_from_the_url(url: str, path: str | None) -> None:
    assert get_local_path(url) == (Path(path) if path is not None else None)


@for_each(
    ("url", "credentials", "reference", "message"),
    [
        ("https://git:s3cret@git.example.net/x", None, None, "remove the credentials from the URL"),
        ("https://s3cret@git.example.net/x", None, None, "remove the credentials from the URL"),
        ("ssh://git:s3cret@git.example.net/x", A_KEY, None, "remove the credentials from the URL"),
        ("https://git:s3cret@more@git.example.net/x", None, None, "^https://git.example.net/x: remove the credentials"),
        ("https://git:s3cret/more@git.example.net/x", None, None, "^https://…: the host or the port"),
        ("https://git:s3cret#more@git.example.net/x", None, None, "^https://…: the host or the port"),
        ("https://git:s3cret?more@git.example.net/x", None, None, "^https://…: the host or the port"),
        ("https://git:s3cret\u2100@git.example.net/x", None, None, "^https://git.example.net/x: the host or the port"),
        ("https://git:s3cret[@git.example.net/x", None, None, "^https://git.example.net/x: the host or the port"),
        ("ftp://git:s3cret/more@git.example.net/x", None, None, "the host or the port"),
        ("ftp://git:s3cret@git.example.net/x", None, None, "unknown scheme ftp"),
        ("git:s3cret@git.example.net:x", None, None, "^… requires a private key"),
        ("http://git.example.net/x", PASSWORD, None, "unencrypted; use https"),
        ("git://git.example.net/x", PASSWORD, None, "does not support Password credentials"),
        ("/srv/fleet", PASSWORD, None, "does not support Password credentials"),
        ("https://git.example.net/x", A_KEY, None, "does not support SshKey credentials"),
        ("ssh://git@git.example.net/x", None, None, "requires a private key and a known_hosts file"),
        ("git@git.example.net:x", PASSWORD, None, "requires a private key and a known_hosts file"),
        ("ftp://git.example.net/x", None, None, "unknown scheme ftp; use https"),
        ("ext://sh -c true", None, None, "unknown scheme ext; use https"),
        ("https://git.example.net:port/x", None, None, "^https://…: the host or the port is not valid"),
        ("https://[::1/x", None, None, "the host or the port is not valid"),
        ("/srv/fleet", None, ">=one", "is not a version range"),
    ],
)
def test_a_remote_that_cannot_work_is_a_usage_error(
    url: str, credentials: Password | SshKey | None, reference: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Remote(url=url, credentials=credentials, reference=reference)
    assert "s3cret" not in f"{caught.value} {caught.value.__cause__}"


HEADS = dict.fromkeys(
    [
        *("HEAD", "refs/heads/main", "refs/heads/both", "refs/heads/feature=x", "refs/heads/a|b", "refs/heads/=1.2"),
        *("refs/tags/both", "refs/tags/v1.2.0", "refs/tags/v2.0.0"),
    ],
    "1" * 40,
)


@for_each(
    ("reference", "ref"),
    [
        (None, "HEAD"),
        ("main", "refs/heads/main"),
        ("both", "refs/heads/both"),
        ("refs/tags/both", "refs/tags/both"),
        ("v1.2.0", "refs/tags/v1.2.0"),
        ("feature=x", "refs/heads/feature=x"),
        ("refs/heads/a|b", "refs/heads/a|b"),
        ("refs/heads/=1.2", "refs/heads/=1.2"),
        ("=1.2", "refs/tags/v1.2.0"),
        ("^1", "refs/tags/v1.2.0"),
        ("*", "refs/tags/v2.0.0"),
    ],
)
def test_a_reference_matches_exactly_one_ref(reference: str | None, ref: str) -> None:
    assert find_reference(Remote(url="x", reference=reference), HEADS) == ref


def test_a_version_range_without_a_matching_tag_matches_no_ref() -> None:
    with pytest.raises(BranchMissing, match=r"x has no tag with a version in the range \^1"):
        find_reference(Remote(url="x", reference="^1"), dict.fromkeys(["refs/heads/main", "refs/tags/None"], "1" * 40))


# Servers that serve


@pytest.fixture(params=["git", "https", "ssh"])
def served(request: pytest.FixtureRequest, work: WorkTree) -> Iterator[Remote]:
    """The same repository over each protocol."""
    match request.param:
        case "git":
            with git_daemon(work.path.parent) as url:
                yield Remote(url=f"{url}/fleet")
        case "https":
            https: HttpsServer = request.getfixturevalue("https")
            url = f"{https.url}/private/fleet"
            yield Remote(url=url, credentials=PASSWORD, ca_bundle=https.certificate)
        case _:
            host = request.getfixturevalue("ssh").host
            yield Remote(url=f"ssh://{host}{work.path}", credentials=request.getfixturevalue("ssh_key"))


def with_reference(remote: Remote, reference: str) -> Remote:
    return Remote(url=remote.url, credentials=remote.credentials, ca_bundle=remote.ca_bundle, reference=reference)


def test_every_protocol_fetches_new_commits_and_tags(served: Remote, work: WorkTree, state: Path) -> None:
    source = Source(served, state)
    first = source.fetch()
    assert (first, text(source, first)) == (work.head, "first")
    work.git("tag", "--annotate", "--message=x", "v1.0.0")
    work.git("tag", "v1.1.0-rc.1")
    second = work.commit({"fleet.yaml": "second"})
    assert source.latest() == first
    assert source.fetch() == source.fetch() == second
    assert text(source, second) == "second"
    assert not source.is_rewind(first, second)
    assert Source(with_reference(served, "^1"), state / "by tag").fetch() == first
    assert Source(with_reference(served, first), state / "other").fetch() == first, "an ancestor of a branch"


def test_a_commit_is_searched_until_some_branch_contains_it(work: WorkTree, state: Path) -> None:
    work.git("branch", "a")
    with git_daemon(work.path.parent) as url:
        ahead = work.commit({"fleet.yaml": "ahead"})
        work.git("reset", "--quiet", "--hard", "HEAD~1")
        Source(Remote(url=f"{url}/fleet"), state).fetch()
        source = Source(Remote(url=f"{url}/fleet", reference=ahead), state)
        with pytest.raises(SourceError, match=f"has no branch or tag that contains {ahead}"):
            source.fetch()
        work.git("branch", "--delete", "--force", "a")
        work.git("branch", "a/b", ahead)
        assert source.fetch() == ahead


def test_without_new_commits_there_is_one_request_and_no_fetch(https: HttpsServer, state: Path) -> None:
    source = Source(Remote(url=f"{https.url}/fleet", ca_bundle=https.certificate), state)
    source.fetch()
    https.requests.clear()
    source.fetch()
    assert https.requests == ["GET /fleet/info/refs"]


def test_messages_of_a_server_need_not_be_utf8(work: WorkTree, tmp_path: Path, state: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text('#!/bin/sh\nprintf "\\351t\\351 \\377\\n" >&2\nexec "$@"\n')
    hook.chmod(0o755)
    (tmp_path / "config").write_text(f"[uploadpack]\npackObjectsHook = {hook}\n")
    with git_daemon(work.path.parent, {**ENVIRONMENT, "GIT_CONFIG_GLOBAL": str(tmp_path / "config")}) as url:
        assert Source(Remote(url=f"{url}/fleet"), state).fetch() == work.head


def test_the_configuration_of_the_user_and_proxies_are_ignored(work: WorkTree, tmp_path: Path, state: Path) -> None:
    (tmp_path / ".gitconfig").write_text(
        '[url "git://127.0.0.1:1/"]\ninsteadOf = git://\n[http]\nproxy = http://127.0.0.1:1\n'
    )
    script = (
        "import sys, pathlib; from gitboot.git.remote import Remote; from gitboot.git.clone import Source;"
        "print(Source(Remote(url=sys.argv[1]), pathlib.Path(sys.argv[2])).fetch())"
    )
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:1")
    with git_daemon(work.path.parent) as url:
        command = [sys.executable, "-c", script, f"{url}/fleet", str(state)]
        environment = {**os.environ, **proxies, "HOME": str(tmp_path)}
        shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert shown.strip() == work.head


# Servers that refuse


@for_each(
    ("path", "credentials", "error", "message"),
    [
        pytest.param("/private/fleet", None, SourceRefused, "requires credentials; configure them", id="none set"),
        pytest.param(
            "/private/fleet", Password(password="s3cret"), SourceRefused, "refuses the credentials", id="wrong"
        ),
        pytest.param(
            "/private/fleet",
            Password(user="s3cret", password=HttpsServer.PASSWORD),
            SourceRefused,
            "refuses the credentials",
            id="wrong user",
        ),
        pytest.param("/status/403/fleet", None, SourceRefused, "unexpected http status code: 403", id="forbidden"),
        pytest.param("/nothing", None, SourceError, "unexpected http status code: 404", id="not found"),
        pytest.param("/status/503/fleet", None, SourceError, "unexpected http status code: 503", id="unavailable"),
        pytest.param("/status/200/fleet", None, SourceError, "fleet: ", id="no git server"),
    ],
)
def test_a_rejection_by_an_https_server_is_reported(
    https: HttpsServer, state: Path, path: str, credentials: Password | None, error: type[Exception], message: str
) -> None:
    https.requests.clear()
    url = f"{https.url}{path}"
    source = Source(Remote(url=url, credentials=credentials, ca_bundle=https.certificate), state)
    with pytest.raises(error, match=message) as caught:
        source.fetch()
    assert "s3cret" not in str(caught.value)
    assert len(https.requests) <= 2


def test_a_certificate_must_be_trusted(work: WorkTree, tmp_path: Path, state: Path) -> None:
    (tmp_path / "stranger").mkdir()
    with HttpsServer(work.path.parent, tmp_path / "stranger") as stranger:
        with pytest.raises(SourceRefused, match=r"127\.0\.0\.1's certificate is not trusted"):
            Source(Remote(url=f"{stranger.url}/fleet"), state).fetch()
        assert stranger.requests == []


def test_a_bundle_without_certificates_is_a_usage_error(tmp_path: Path, state: Path) -> None:
    (tmp_path / "empty.pem").touch()
    for bundle in (tmp_path / "empty.pem", tmp_path / "nowhere.pem"):
        with pytest.raises(UsageError, match=f"{bundle} contains no certificates"):
            Source(Remote(url="https://127.0.0.1:1/fleet", ca_bundle=bundle), state).fetch()


@for_each(
    ("known", "message"),
    [
        pytest.param("[127.0.0.1]:{port} {ed25519}", None, id="one key"),
        pytest.param("[127.0.0.1]:{port} {rsa}", None, id="the other key"),
        pytest.param("[127.0.0.1]:{port} {stranger}\n127.0.0.1 {ed25519}", None, id="one of several"),
        pytest.param("127.0.0.* {ed25519}", None, id="a pattern"),
        pytest.param("{hash} {ed25519}", None, id="hashed"),
        pytest.param("what is this\n\n# nothing\n127.0.0.1 {ed25519}\n", None, id="among nonsense"),
        pytest.param("[127.0.0.1]:{port} {stranger}", "uses a host key that", id="another key"),
        pytest.param("[127.0.0.1]:1 {ed25519}", "does not contain a host key for 127.0.0.1 port", id="another port"),
        pytest.param("git.example.net {ed25519}", "does not contain a host key for 127.0.0.1 port", id="another host"),
        pytest.param("", "does not contain a host key for 127.0.0.1 port", id="nothing"),
        pytest.param("@revoked * {ed25519}\n* {ed25519}", "revokes every host key for", id="revoked"),
        pytest.param("@revoked * {ed25519}\n* {ed25519}\n* {stranger}", "uses a host key that", id="revoked of two"),
    ],
)
def test_a_host_must_have_a_known_key(
    ssh: SshServer, ssh_key: SshKey, work: WorkTree, state: Path, known: str, message: str | None
) -> None:
    keys = {name: ssh.public(name) for name in ("ed25519", "rsa", "stranger")}
    ssh_key.known_hosts.write_text(known.format(port=ssh.port, hash=hash_host(f"[127.0.0.1]:{ssh.port}"), **keys))
    source = Source(Remote(url=f"ssh://{ssh.host}{work.path}", credentials=ssh_key), state)
    if message is None:
        assert source.fetch() == work.head
    else:
        with pytest.raises(SourceRefused, match=message):
            source.fetch()


@for_each(
    ("key", "passphrase", "path", "error", "message"),
    [
        pytest.param("stranger", "", "", SourceRefused, "refuses the credentials", id="wrong key"),
        pytest.param("client", "s3cret", "", SourceRefused, "failed to authenticate", id="wrong passphrase"),
        pytest.param("client", "", "", SourceRefused, "failed to authenticate", id="no passphrase"),
        pytest.param("nowhere", "", "", UsageError, "nowhere: the private key cannot be read", id="no key"),
        pytest.param("client.pub", "", "", UsageError, r"client\.pub contains no private key", id="no private key"),
        pytest.param("client", SshServer.PASSPHRASE, "/no", SourceError, "not appear to be a git", id="no repository"),
    ],
)
def test_a_rejection_by_an_ssh_server_is_reported(
    ssh: SshServer, ssh_key: SshKey, work: WorkTree, state: Path, key: str, passphrase: str, path: str,
    error: type[Exception], message: str,
) -> None:  # fmt: skip
    credentials = SshKey(private_key=ssh.key(key), passphrase=passphrase, known_hosts=ssh_key.known_hosts)
    source = Source(Remote(url=f"ssh://{ssh.host}{work.path}{path}", credentials=credentials), state)
    with pytest.raises(error, match=message) as caught:
        source.fetch()
    assert "s3cret" not in str(caught.value)


def test_without_a_name_the_user_is_git(ssh: SshServer, ssh_key: SshKey, work: WorkTree, state: Path) -> None:
    """There is no such user here, so it is refused; but not for want of a name."""
    url = f"ssh://127.0.0.1:{ssh.port}{work.path}"
    with pytest.raises(SourceRefused, match="refuses the credentials"):
        Source(Remote(url=url, credentials=ssh_key), state).fetch()


def test_finding_p1_a_rotated_ssh_key_and_host_key_count_at_the_next_fetch(
    ssh: SshServer, ssh_key: SshKey, work: WorkTree, state: Path, fetcher: FetchProcess, tmp_path: Path
) -> None:
    key = tmp_path / "id"
    shutil.copy(ssh.key("stranger"), key)
    credentials = SshKey(private_key=key, known_hosts=ssh_key.known_hosts, passphrase=ssh_key.passphrase)
    source = Source(Remote(url=f"ssh://{ssh.host}{work.path}", credentials=credentials), state, fetcher)
    with pytest.raises(SourceRefused):
        source.fetch()
    shutil.copy(ssh.key("client"), key)
    assert source.fetch() == work.head
    known = ssh_key.known_hosts.read_text()
    ssh_key.known_hosts.write_text(f"[127.0.0.1]:{ssh.port} {ssh.public('stranger')}\n")
    with pytest.raises(SourceRefused, match="uses a host key that"):
        source.fetch()
    ssh_key.known_hosts.write_text(known)
    shutil.copy(ssh.key("stranger"), key)
    with pytest.raises(SourceRefused, match="refuses the credentials"):
        source.fetch()
    key.unlink()
    with pytest.raises(UsageError, match=rf"{key}: the private key cannot be read \(No such file"):
        source.fetch()


def test_the_known_hosts_file_must_exist(ssh: SshServer, ssh_key: SshKey, state: Path) -> None:
    ssh_key.known_hosts.unlink()
    with pytest.raises(UsageError, match="known_hosts: No such file"):
        Source(Remote(url=f"ssh://{ssh.host}/x", credentials=ssh_key), state).fetch()


# Servers that hang, break off, or are not there


@pytest.mark.parametrize("scheme", ["git", "http", "https", "ssh"])
def test_a_server_that_never_responds_is_abandoned(scheme: str, tmp_path: Path, state: Path) -> None:
    with silent_server() as port:
        key = SshKey(private_key=tmp_path / "id", known_hosts=tmp_path / "known_hosts")
        key.private_key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
        key.known_hosts.write_text("* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Q\n")
        credentials = key if scheme == "ssh" else None
        remote = Remote(url=f"{scheme}://127.0.0.1:{port}/x", credentials=credentials, timeout_s=0.5)
        with pytest.raises(SourceError, match=f"{scheme}://127.0.0.1:{port}/x: "):
            Source(remote, state).fetch()


@pytest.mark.parametrize("url", ["git://127.0.0.1:{port}/x", "https://127.0.0.1:{port}/x", "git://nowhere.invalid/x"])
def test_an_unreachable_server_may_come_back(url: str, state: Path) -> None:
    with silent_server() as port:
        pass
    with pytest.raises(SourceError, match="fail"):
        Source(Remote(url=url.format(port=port)), state).fetch()


@pytest.mark.parametrize("then", ["hangs", "hangs up"])
def test_an_incomplete_response_changes_nothing(work: WorkTree, state: Path, then: str) -> None:
    with git_daemon(work.path.parent) as url:
        source = Source(Remote(url=f"{url}/fleet"), state)
        first = accepted = source.fetch()
        source.accept(accepted)
        for passes in (1, 10, 300, 700, 3000, 20_000):
            before = text(source, first)
            second = work.commit({"fleet.yaml": f"{passes}", "noise": os.urandom(30_000).hex()})
            with Relay(url, passes=passes, then=then) as relay:
                cut = Source(Remote(url=f"{relay.url}/fleet", timeout_s=0.3), state)
                with pytest.raises(SourceError) as caught:
                    cut.fetch()
                assert not isinstance(caught.value, CorruptClone), passes
            assert (source.latest(), source.accepted(), text(source, first)) == (first, accepted, before), passes
            assert (source.fetch(), text(source, second)) == (second, f"{passes}"), passes
            first = second


@pytest.mark.parametrize("is_first", [True, False], ids=["first fetch", "later fetch"])
def test_a_fetch_that_is_killed_halfway_leaves_no_files(work: WorkTree, state: Path, is_first: bool) -> None:
    script = (
        "import sys, pathlib; from gitboot.git.remote import Remote; from gitboot.git.clone import Source;"
        "Source(Remote(url=sys.argv[1]), pathlib.Path(sys.argv[2])).fetch()"
    )
    with git_daemon(work.path.parent) as url:
        source = Source(Remote(url=f"{url}/fleet"), state)
        if not is_first:
            source.accept(source.fetch())
        revision = work.commit({"noise": os.urandom(300_000).hex()})
        with Relay(url, passes=100_000, then="hangs") as relay:
            process = subprocess.Popen([sys.executable, "-c", script, f"{relay.url}/fleet", str(state)])
            assert relay.stalled.wait(60)
            eventually(lambda: list(state.rglob("pack_git2_*")))  # it is within a pack
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert list(state.rglob("pack_git2_*"))
        source = Source(Remote(url=f"{url}/fleet"), state)
        assert (list(state.rglob("pack_git2_*")), source.fetch()) == ([], revision)
        assert (source.accepted() is None) == is_first


def test_damage_that_only_a_fetch_can_find_is_reported(work: WorkTree, state: Path) -> None:
    """The server sends differences to objects of the clone, so a damaged clone can make its response fail."""
    lines = [os.urandom(30).hex() for _ in range(300)]
    work.commit({"large.yaml": "\n".join(lines)})
    work.git("gc", "--quiet")
    with git_daemon(work.path.parent) as url:
        source = Source(Remote(url=f"{url}/fleet"), state)
        accepted = source.fetch()
        source.accept(accepted)
        (pack,) = (state / "repository.git/objects/pack").glob("*.pack")
        pack.chmod(0o644)
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 0xFF  # within the only large blob
        pack.write_bytes(data)
        latest = work.commit({"large.yaml": "\n".join([*lines, "one more"])})

        source = Source(Remote(url=f"{url}/fleet"), state)
        with pytest.raises(CorruptClone):
            source.fetch()
        source.restore(accepted)

        assert (source.accepted(), source.latest(), source.fetch()) == (accepted, latest, latest)
        assert len(text(source, accepted, "large.yaml").splitlines()) == 300


def test_an_accepted_commit_that_the_followed_branch_lacks_is_searched_in_all_branches(
    work: WorkTree, tmp_path: Path, state: Path
) -> None:
    work.git("switch", "--quiet", "--create", "elsewhere")
    accepted = work.commit({"fleet.yaml": "elsewhere"})
    with git_daemon(work.path.parent) as url:
        source = Source(Remote(url=f"{url}/fleet", reference="main"), state)
        source.restore(accepted)
        assert (source.accepted(), text(source, accepted)) == (accepted, "elsewhere")


# Servers that lead elsewhere


@pytest.fixture
def other_server(work: WorkTree, tmp_path: Path) -> Iterator[HttpsServer]:
    """A server that everybody trusts, and that is not the remote's."""
    (tmp_path / "other").mkdir()
    with HttpsServer(work.path.parent, tmp_path / "other") as server:
        yield server


@pytest.mark.parametrize("asks_first", [False, True])
@pytest.mark.parametrize("where", ["https://127.0.0.1:PORT", "https://localhost:PORT", "http://127.0.0.1:PORT"])
def test_t3_credentials_do_not_follow_a_redirect_to_another_server(
    https: HttpsServer, other_server: HttpsServer, state: Path, tmp_path: Path, where: str, asks_first: bool
) -> None:
    bundle = tmp_path / "both.pem"
    bundle.write_text(https.certificate.read_text() + other_server.certificate.read_text())
    https.redirect_target = where.replace("PORT", other_server.url.rpartition(":")[2]) + "/private"
    path = "/private/moved/fleet/.git" if asks_first else "/moved/fleet/.git"
    source = Source(Remote(url=f"{https.url}{path}", credentials=PASSWORD, ca_bundle=bundle), state)
    with pytest.raises((SourceError, SourceRefused)) as caught:
        source.fetch()
    assert (other_server.authorized, bool(https.authorized)) == ([], asks_first)
    if where == "https://127.0.0.1:PORT":
        assert "gitboot will not send the credentials there" in str(caught.value)


def test_t3_a_redirect_within_the_same_server_is_followed(work: WorkTree, https: HttpsServer, state: Path) -> None:
    https.redirect_target = "/private"
    url = f"{https.url}/moved/fleet/.git"
    source = Source(Remote(url=url, credentials=PASSWORD, ca_bundle=https.certificate), state)
    assert source.fetch() == work.git("rev-parse", "HEAD").strip()
    assert https.authorized


ED, RSA = "ssh-ed25519 AAAAC3Nza", "ssh-rsa AAAAB3Nza"


def hash_host(name: str) -> str:
    salt = b"0123456789abcdefghij"
    digest = hmac.digest(salt, name.encode(), "sha1")
    return "|1|" + "|".join(base64.b64encode(part).decode() for part in (salt, digest))


@for_each(
    ("lines", "keys"),
    [
        pytest.param(f"git.example.net {ED}", {ED}, id="the host"),
        pytest.param(f"git.example.net {ED} comment", {ED}, id="with a comment"),
        pytest.param(f"git.example.net {ED}\ngit.example.net {RSA}\r\n", {ED, RSA}, id="two keys"),
        pytest.param(f"GIT.Example.net {ED}", {ED}, id="names have no case"),
        pytest.param(f"other.example.net {ED}", set(), id="another host"),
        pytest.param(f"a,git.example.net,b {ED}", {ED}, id="a list"),
        pytest.param(f"*.example.net {ED}", {ED}, id="a pattern"),
        pytest.param(f"git.example.ne? {ED}", {ED}, id="a single character"),
        pytest.param(f"*.example.net,!git.example.net {ED}", set(), id="excluded"),
        pytest.param(f"!git.example.net,*.example.net {ED}", set(), id="excluded first"),
        pytest.param(f"!other.example.net {ED}", set(), id="only an exclusion"),
        pytest.param(f"{hash_host('git.example.net')} {ED}", {ED}, id="hashed"),
        pytest.param(f"{hash_host('other.example.net')} {ED}", set(), id="another host, hashed"),
        pytest.param(f"|1|nonsense {ED}", set(), id="an invalid hash"),
        pytest.param(f"[git.example.net]:2222 {ED}", set(), id="another port"),
        pytest.param(f"@revoked git.example.net {ED}\n* {ED}\n* {RSA}", {RSA}, id="revoked"),
        pytest.param(f"* {ED}\n@revoked {hash_host('git.example.net')} {ED}", set(), id="revoked later, hashed"),
        pytest.param(f"@cert-authority *.example.net {ED}", set(), id="an authority is no key"),
        pytest.param(f"# git.example.net {ED}\n\nwhat?\ngit.example.net\n", set(), id="no usable key"),
        pytest.param(f"# old:\fgit.example.net {ED}\u2028* {RSA}", set(), id="a comment with separators"),
    ],
)
def test_known_hosts_are_read_as_openssh_reads_them(lines: str, keys: set[str]) -> None:
    assert set(parse_known_hosts(lines, "git.example.net", 22).trusted) == keys


@for_each(
    ("lines", "expected"),
    [
        ("", "does not contain a host key for git.example.net port 22; get the current key"),
        (f"@revoked * {ED}", "revokes every host key for git.example.net port 22 (@revoked); get the"),
        (f"* {ED}\n@revoked * {ED}", "revokes every host key"),
        (f"@cert-authority *.example.net {ED}", "contains only a certificate authority for git.example.net port 22"),
    ],
)
def test_finding_p13_a_missing_host_key_has_its_cause(lines: str, expected: str) -> None:
    found = parse_known_hosts(lines, "git.example.net", 22)
    assert found.trusted == ()
    assert found.explain_missing_key(Path("known_hosts"), "git.example.net", 22).startswith(f"known_hosts {expected}")


@for_each(
    ("names", "is_known"),
    [
        pytest.param("[git.example.net]:2222", True, id="with the port"),
        pytest.param(hash_host("[git.example.net]:2222"), True, id="with the port, hashed"),
        pytest.param("git.example.net", True, id="without a port, as ssh falls back to"),
        pytest.param("[git.example.net]:2223", False, id="another port"),
        pytest.param("[*.example.net]:2222", True, id="a pattern with the port"),
    ],
)
def test_another_port_has_its_own_known_hosts(names: str, is_known: bool) -> None:
    assert parse_known_hosts(f"{names} {ED}", "git.example.net", 2222).trusted == ((ED,) if is_known else ())
