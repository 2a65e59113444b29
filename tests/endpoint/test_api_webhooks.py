"""Webhooks of forges: a request with the secret triggers a fetch at once, any other request does not."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from selectors import DefaultSelector
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from gitboot.endpoint import api
from gitboot.endpoint.api import PushSecret, Webhooks
from gitboot.endpoint.connections import RequestBodies
from gitboot.errors import UsageError
from tests.helpers import http_peers
from tests.helpers.fleets import SEED, server, write_configuration
from tests.helpers.git_repositories import git_daemon
from tests.helpers.http_peers import write_private
from tests.helpers.running_instance import Instance, Repository, eventually, running

SECRET = b"correct-horse-staple"
BODY = b'{"ref": "refs/heads/main"}'


class MovedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next due call when it has nothing left to do."""

    def __init__(self) -> None:
        self._now = 0.0
        self._selector = DefaultSelector()
        super().__init__(self._selector)
        self._select = self._selector.select
        self._selector.select = self._skip  # type: ignore[method-assign]

    def _skip(self, timeout: float | None = None) -> Any:
        self._now += timeout or 0
        return self._select(0)

    def time(self) -> float:
        return self._now


class WebhookRecorder:
    """The webhook handler in a loop with a test clock, and the times of its fetches."""

    def __init__(self, folder: Path) -> None:
        self._loop = MovedLoop()
        self.woken: list[float] = []
        secret = PushSecret(write_private(folder / "secret", SECRET.decode()))
        self._pushes = Webhooks(secret, lambda: self.woken.append(self._loop.time()))

    def send_webhooks(self, headers: list[tuple[bytes, bytes]], times: int) -> set[int]:
        """Send webhooks, ten a second, and wait for a minute. Return the statuses."""

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": BODY}

        async def push() -> set[int]:
            found = set()
            for _ in range(times):
                read = partial(RequestBodies().read, receive, None)
                reply = await self._pushes.handle({"type": "http", "headers": headers}, read)
                found.add(reply.status_code)
                await asyncio.sleep(0.1)
            await asyncio.sleep(60)
            return found

        with pytest.MonkeyPatch.context() as patched, asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            patched.setattr(api, "time", SimpleNamespace(monotonic=self._loop.time))
            return runner.run(push())


def sign_body(secret: bytes = SECRET, body: bytes = BODY) -> str:
    return hmac.new(secret, body, "sha256").hexdigest()


class Site(NamedTuple):
    """An instance that fetches once an hour by itself, from a remote that it cannot watch."""

    repository: Repository
    instance: Instance
    operators: str  # the operators' URL

    def push(self, **headers: str) -> int:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return http_peers.post(f"{self.operators}/hooks/push", content=BODY, headers=names).status_code


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("pushes")
    repository = Repository.create(folder / "git")
    repository.push({"fleet.yaml": "---\n".join(SEED)})
    secret = write_private(folder / "push.secret", f"{SECRET.decode()}\n")
    options = [
        "--push-secret",
        str(secret),
        "--operators-listen",
        "127.0.0.1:0",
        *write_configuration(max_small_group=9),
    ]
    with git_daemon(folder / "git") as url:
        options += ["--poll", "3600", "--check-assets", "off"]
        with running(f"{url}/fleet.git", folder, *options, records="fresh") as instance:
            operators = next(each["url"] for each in instance.events if each["type"] == "ListeningForOperators")
            yield Site(repository, instance, operators)


def test_a_push_that_a_forge_signs_makes_the_instance_fetch(site: Site) -> None:
    for number, headers in enumerate(
        [
            {"X_Hub_Signature_256": f"sha256={sign_body()}"},  # GitHub
            {"X_Gitlab_Token": SECRET.decode()},
            {"X_Hub_Signature": f"sha256={sign_body()}"},  # Bitbucket (finding P13)
            {
                "X_Hub_Signature": f"sha1={'0' * 40}",
                "X_Hub_Signature_256": f"sha256={sign_body()}",
            },  # GitHub sends both
            {"X_Gogs_Signature": sign_body()},
            {"X_Gitea_Signature": sign_body(), "X_Hub_Signature_256": f"sha256={sign_body()}"},
        ]
    ):
        commit = site.repository.push({f"more-{number}.yaml": server(f"more{number}", "role: web")})
        assert site.push(**headers) == 204
        eventually(
            lambda commit=commit: any(  # type: ignore[misc]
                each["type"] == "Fetched" and each["commit"] == commit for each in site.instance.events
            ),
        )


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X_Hub_Signature_256": f"sha256={sign_body(b'another-secret-of-16')}"},
        {"X_Hub_Signature_256": f"sha256={sign_body(body=b'{}')}"},
        {"X_Hub_Signature_256": ""},
        {"X_Gitlab_Token": "another-secret-of-16"},
        {"X_Gitlab_Token": ""},
        {"X_Gitlab_Token": SECRET.decode(), "X_Gitea_Signature": "0"},  # one of two is wrong
        {"X_Hub_Signature": f"sha256={sign_body(b'another-secret-of-16')}"},
        {"X_Hub_Signature": sign_body()},  # a SHA-1 signature, which gitboot ignores
    ],
)
def test_a_push_without_the_secret_does_nothing(site: Site, tmp_path: Path, headers: dict[str, str]) -> None:
    assert site.push(**headers) == 403
    heard = WebhookRecorder(tmp_path)
    sent = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
    assert heard.send_webhooks(sent, times=1) == {403}
    assert heard.woken == []


def test_a_push_is_accepted_only_by_post_and_at_the_address_of_operators(site: Site) -> None:
    right = {"X-Gitlab-Token": SECRET.decode()}
    assert http_peers.post(f"{site.instance.url}/hooks/push", content=BODY, headers=right).status_code == 405
    assert http_peers.get(f"{site.operators}/hooks/push", headers=right).status_code == 404


def test_a_body_without_end_is_not_read(site: Site) -> None:
    right = {"X-Gitlab-Token": SECRET.decode()}
    large = http_peers.post(f"{site.operators}/hooks/push", content=b"x" * (5 << 20) + b"x", headers=right)
    assert large.status_code == 413


def test_many_pushes_cause_few_fetches(tmp_path: Path) -> None:
    """The first fetch is at once, then there is one every two seconds."""
    heard = WebhookRecorder(tmp_path)
    assert heard.send_webhooks([(b"x-gitlab-token", SECRET)], times=50) == {204}
    assert [round(each) for each in heard.woken] == [0, 2, 4, 6]


@pytest.mark.parametrize(("content", "said"), [(None, "cannot be read"), ("short", "16 characters")])
def test_an_unusable_secret_is_rejected_at_the_start(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "secret").write_text(content)
    with pytest.raises(UsageError, match=said):
        PushSecret(tmp_path / "secret").read()
