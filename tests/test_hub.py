"""One view over several instances: what is merged, what is said of one that is down, and who may look."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gitboot.cli import cli
from gitboot.cli.exit import Exit
from gitboot.errors import UsageError
from gitboot.hub.members import NamedInstance, read_members
from gitboot.hub.overview import Sight, behind
from gitboot.hub.showing import Hub
from gitboot.hub.watching import Watch
from gitboot.render.page import MADE_OF, value_in
from gitboot.serve.admission import Clients
from gitboot.serve.app import Endpoint
from gitboot.serve.crowd import Crowd
from gitboot.serve.encrypted import EncryptedSocket
from gitboot.serve.operators import Tokens
from gitboot.serve.operatorspage import PAGE
from gitboot.serve.server import EndpointServer, listen_at, url_of
from gitboot.serve.tree import PublishedTree
from tests import plain
from tests.browser import browser, browsers
from tests.cases import for_each
from tests.fleets import fleet, image, policy, profile, server
from tests.redfish.certificates import Authority
from tests.serving import BEFORE, Site, planned, site

TOKEN = "a-token-of-the-hub-0123"


def told(*commits: str, at: str = "2026-11-20T20:59:00Z", **more: Any) -> dict[str, Any]:
    """What an instance says that has accepted these commits, the newest first."""
    return {
        "at": at,
        "attempted": {"commit": commits[0], "problems": [], "held": None},
        "accepted": {"commit": commits[0], "changed": [], "lately": [{"commit": each} for each in commits]},
        "applied": {"commit": commits[0]},
        "phases": {"Network": 1},
        "conditions": [],
        **more,
    }


def of_site(name: str, *servers: str) -> Any:
    """What the instance of a site publishes: its servers are installed at their next boot."""
    labels = f"role: web, site: {name}"
    return planned(
        fleet(
            "baseURL: 'http://boot.test', outputs: [ipxe, pages], "
            f"sites: [{{name: {name}, select: All, baseURL: 'http://{name}.test'}}]"
        ),
        *(server(each, labels) for each in servers),
        image("flatcar-1"),
        profile("web", "flatcar-1"),
        policy("web", "{matchLabels: {role: web}}"),
    )


@dataclass
class Shown:
    """A hub over two instances: the tree of one, the endpoint of the other."""

    folder: Path
    file: Path
    ams2: Site
    fra1: Site
    now: Any = BEFORE
    url: str = ""
    watch: Watch | None = None

    def turn(self) -> None:
        assert self.watch is not None
        assert not wait(self.watch.turn(), timeout=60).not_done

    def get(self, path: str, **more: Any) -> Any:
        return plain.get(f"{self.url}{path}", timeout=10, **more)

    def data(self, name: str) -> Any:
        return value_in(self.get(f"{PAGE}data/{name}.js").content)

    @property
    def sites(self) -> dict[str, dict[str, Any]]:
        return {each["instance"]: each for each in self.get("/api/v1/sites").json()["items"]}

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        shards = [self.data(f"shard/{each}") for each in self.data("fleet")["shards"]]
        found = [dict(zip(shard["columns"], row, strict=True)) for shard in shards for row in shard["rows"]]
        return {row["name"]: row for row in found}


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    with ExitStack() as stack:
        ams2 = stack.enter_context(site(of_site("ams2", "web01", "web02")))
        fra1 = stack.enter_context(site(of_site("fra1", "web03")))
        ams2.say(told("c3", "c2", "c1", phases={"Network": 2}, installs={"Now": 2}))
        fra1.say(told("c1"))
        file = tmp_path / "hub.toml"
        made = Shown(tmp_path, file, ams2, fra1)
        yield made


@contextmanager
def hub(made: Shown, clients: Clients = Clients()) -> Iterator[Shown]:  # noqa: B008 - a value
    made.watch = Watch(read_members(made.file), lambda: made.now)
    listening = listen_at("127.0.0.1:0")
    with EndpointServer(Hub(made.watch, lambda: made.now, clients), listening):
        made.url = url_of("127.0.0.1:0", listening)
        made.turn()
        try:
            yield made
        finally:
            made.watch.close()


def both(made: Shown, url: str) -> None:
    elsewhere = f'[instances.fra1-a]\nsite = "fra1"\nurl = "{url}"\n'
    made.file.write_text(f'[instances.ams2]\nout = "{made.ams2.root}"\n{elsewhere}')


def test_two_instances_are_one_page(shown: Shown) -> None:
    with shown.fra1.serve() as url:
        both(shown, url)
        with hub(shown):
            assert {name: each["site"] for name, each in shown.rows.items()} == {
                "web01": "ams2",
                "web02": "ams2",
                "web03": "fra1",
            }
            assert {name: (each["state"], each["behind"]) for name, each in shown.sites.items()} == {
                "ams2": ("Current", 0),
                "fra1-a": ("Current", 2),
            }
            assert shown.sites["ams2"]["installs"] == {"now": 2, "later": 0}
            assert shown.data("server/web03")["name"] == "web03"
            assert {shown.get(f"{PAGE}{name}").status_code for name in MADE_OF if name != "index.html"} == {200}
            metrics = shown.get("/metrics").text
            assert 'gitboot_servers{name="ams2",phase="Network",site="ams2"} 2.0' in metrics
            assert 'gitboot_instance_behind_commits{name="fra1-a",site="fra1"} 2.0' in metrics


def test_an_instance_that_goes_down_delays_nobody_and_its_age_is_told(shown: Shown) -> None:
    with ExitStack() as stack:
        up = ExitStack()
        url = stack.enter_context(up).enter_context(shown.fra1.serve())
        both(shown, url)
        stack.enter_context(hub(shown))
        up.close()
        shown.now = BEFORE + timedelta(minutes=5)
        shown.ams2.publish(of_site("ams2", "web01", "web02", "web09"))
        shown.ams2.say(told("c4", "c3", "c2", "c1", at="2026-11-20T21:04:00Z", phases={"Network": 3}))
        shown.turn()
        fra1 = shown.sites["fra1-a"]
        assert (fra1["state"], fra1["seen"], fra1["failingSince"], fra1["behind"]) == (
            "Unreachable",
            "2026-11-20T21:00:00Z",
            "2026-11-20T21:05:00Z",
            3,
        )
        assert fra1["failure"].startswith("127.0.0.1:")
        assert shown.rows.keys() == {"web01", "web02", "web03", "web09"}, "what was read last is shown"
        assert 'gitboot_instance_read{name="fra1-a",site="fra1"} 0.0' in shown.get("/metrics").text
        (failing,) = [each for each in shown.data("status")["conditions"] if not each["status"]]
        assert (failing["type"], failing["reason"]) == ("InstanceRead/fra1-a", "Unreachable")
        assert "as it was read at 2026-11-20T21:00:00Z" in failing["message"]
        shown.now = BEFORE + timedelta(hours=1)
        shown.turn()
        assert shown.sites["ams2"]["state"] == "Silent", "a copy that nobody brings is read, and is old"


def test_the_hub_only_reads_and_answers_operators_alone(shown: Shown, tmp_path: Path) -> None:
    shown.file.write_text(f'[instances.ams2]\nout = "{shown.ams2.root}"\n')
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    with hub(shown, Clients(operators=[ip_network("192.0.2.1/32")], tokens=Tokens(tokens))):
        paths = ("/metrics", "/api/v1/sites", PAGE, f"{PAGE}data/status.js", f"{PAGE}data/fleet.js")
        assert {shown.get(path).status_code for path in paths} == {404}
        let_in = {"authorization": f"Bearer {TOKEN}"}
        assert {shown.get(path, headers=let_in).status_code for path in paths} == {200}
        assert shown.get("/metrics", headers={"authorization": "Bearer another-0123456789"}).status_code == 401
        assert shown.get("/healthz").status_code == 200
        for path in paths:
            assert plain.post(f"{shown.url}{path}", headers=let_in).status_code == 405
        for path in ("/api/v1/status", "/v1/boot/x/boot.ipxe", f"{PAGE}data/../../hub.toml", f"{PAGE}data/server/..js"):
            assert shown.get(path, headers=let_in).status_code == 404


@contextmanager
def encrypted(made: Site, authority: Authority, tokens: Path) -> Iterator[str]:
    """An endpoint as operators ask it from elsewhere: by TLS, with a token."""
    tree = PublishedTree(made.root, lambda: BEFORE)
    clients = Clients(operators=[ip_network("192.0.2.1/32")], tokens=Tokens(tokens))
    endpoint, listening = Endpoint(made.root, tree, lambda: BEFORE, None, clients), listen_at("127.0.0.1:0")
    let_in = EncryptedSocket(listening, authority.server_context(), Crowd(), lambda: None)
    with listening, EndpointServer(endpoint, encrypted=let_in):
        yield url_of("127.0.0.1:0", listening, "https")


def status_all(file: Path, *more: str) -> Result:
    return CliRunner().invoke(cli, ["status", "--all", str(file), *more])


def test_status_of_all_verifies_whom_it_asks_shows_a_token_and_says_who_is_not_reached(
    shown: Shown, tmp_path: Path
) -> None:
    authority, token = Authority(tmp_path), tmp_path / "fra1.token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    with encrypted(shown.fra1, authority, token) as url:
        trusted = f'[instances.fra1]\nurl = "{url}"\nca-bundle = "ca.pem"\n'
        shown.file.write_text(f'{trusted}token-file = "fra1.token"\n[instances.ams2]\nout = "{shown.ams2.root}"\n')
        found = status_all(shown.file)
        assert "unreachable" not in found.output and "2 instances, 3 servers" in found.output
        items = {each["instance"]: each for each in json.loads(status_all(shown.file, "-o", "json").stdout)["items"]}
        assert (items["fra1"]["behind"], items["ams2"]["behind"]) == (2, 0)
        assert found.exit_code == Exit.FINE
        for lacking, words in (
            (f'[instances.fra1]\nurl = "{url}"\ntoken-file = "fra1.token"\n', "CERTIFICATE_VERIFY_FAILED"),
            (trusted, "answers 404: this machine is none of its --operators"),
        ):
            shown.file.write_text(lacking)
            found = status_all(shown.file)
            assert found.exit_code == Exit.PARTIAL
            assert words in " ".join(found.output.split()) and "NeverRead" in found.output
            assert "unreachable at 20" in found.output


def test_status_of_all_counts_the_servers_of_a_site_once(shown: Shown) -> None:
    copy = f'[instances.fra1-copy]\nsite = "fra1"\nout = "{shown.fra1.root}"\n'
    both = "".join(
        f'[instances.{name}]\nout = "{made.root}"\n' for name, made in (("fra1", shown.fra1), ("ams2", shown.ams2))
    )
    shown.file.write_text(both)
    assert "2 instances, 3 servers" in status_all(shown.file).output
    shown.file.write_text(both + copy)
    assert "3 instances, 3 servers" in status_all(shown.file).output


@for_each(
    ("text", "says"),
    [
        ("", "expected [instances.NAME]"),
        ("[[instances]]\n", "expected [instances.NAME]"),
        ("[instances.a]\n", "expected url, of an endpoint, or out"),
        ("[instances.a]\nurl = 'https://a'\nout = '/srv'\n", "expected url, of an endpoint, or out"),
        ("[instances.a]\nulr = 'https://a'\n", "there is no key 'ulr'; did you mean url?"),
        ("[instances.a]\nurl = 'ftp://a'\n", "url: expected https://HOST:PORT"),
        ("[instances.a]\nurl = 'https://ada:x@a'\n", "url: expected https://HOST:PORT"),
        ("[instances.a]\nurl = 'http://a'\ntoken-file = 't'\n", "http would send the token unencrypted"),
        ("[instances.a]\nout = '/srv'\ntoken-file = 't'\n", "token-file belongs to a url"),
        ("[instances.a]\nurl = 1\n", "url: expected a text on one line"),
        ("[instances.A]\nout = '/srv'\n", "expected small letters"),
        ("x = ", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_its_place(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        read_members(file)
    assert str(refused.value).startswith(str(file)) and says in str(refused.value)


@for_each(
    ("own", "others", "expected"),
    [
        ("c3 c2 c1", ["c3 c2"], 0),
        ("c1", ["c3 c2 c1"], 2),
        ("c2 c1", ["c3 c2 c1", "c2"], 1),
        ("c3 c2 c1", ["c1"], 0),
        ("c3", ["c9 c8"], None),
        ("c3", [], 0),
        ("", ["c1"], None),
    ],
)
def test_an_instance_is_behind_by_what_another_has_accepted_since(
    own: str, others: list[str], expected: int | None
) -> None:
    def sight(commits: str) -> Sight:
        status = told(*commits.split()) if commits else None
        return Sight(member=NamedInstance(name="a", site="a"), status=status)

    assert behind(sight(own), [sight(each) for each in others]) == expected


@browsers
def test_the_page_of_a_hub_shows_the_sites_in_a_browser(shown: Shown, tmp_path: Path) -> None:
    with shown.fra1.serve() as url:
        both(shown, url)
        with hub(shown), browser(tmp_path) as chromium:
            chromium.open(f"{shown.url}{PAGE}")
            assert "3 of 3 servers" in chromium.text
            chromium.open(f"{shown.url}{PAGE}#/sites")
            chromium.until('document.body.innerText.includes("fra1-a")')
            assert "Current" in chromium.text and chromium.faults == []
