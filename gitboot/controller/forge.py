"""A forge (GitHub, GitLab, Gitea): told what an instance makes of a commit, as a commit status, and asked for it."""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from gitboot.errors import ForgeRefused, HostUnreachable, UsageError
from gitboot.http_client import HttpClient, WebAnswer, check_credentials, host_of

_LONGEST: Final = 140  # of a description: GitHub's; GitLab and Gitea take 255
_WITNESS: Final = re.compile(
    r"(?P<says>.*) \(ledger (?P<ledger>[^\s,]+), change (?P<change>[0-9]{1,18})"
    r"(?:, proof (?P<proof>[A-Za-z0-9_-]{16}))?\)"
)
_MOST_PAGES: Final = 10  # of the statuses of one commit; GitHub takes 1000 of one name
_AGAIN: Final = frozenset({408, 409, 423, 425, 429})


class ForgeKind(StrEnum):
    GITHUB = "github"
    GITLAB = "gitlab"
    GITEA = "gitea"


class Judgement(StrEnum):
    """What an instance has made of a commit."""

    ACCEPTED = "accepted"
    HELD = "held"
    INVALID = "invalid"


# What each calls them. GitLab refuses to go on from pending, so a held commit has failed until it is accepted.
_STATES: Final[Mapping[ForgeKind, Mapping[Judgement, str]]] = {
    ForgeKind.GITHUB: {Judgement.ACCEPTED: "success", Judgement.HELD: "failure", Judgement.INVALID: "error"},
    ForgeKind.GITLAB: {Judgement.ACCEPTED: "success", Judgement.HELD: "failed", Judgement.INVALID: "failed"},
    ForgeKind.GITEA: {Judgement.ACCEPTED: "success", Judgement.HELD: "failure", Judgement.INVALID: "error"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitVerdict:
    """What the instance with one ledger makes of a commit."""

    commit: str
    judgement: Judgement
    says: str  # in a few words, which begin with the judgement
    ledger: str  # the identity of the instance's ledger
    change: int  # how far that had come
    proof: str = field(default="", compare=False)  # that the ledger's own instance wrote it; see `proven`

    def proven(self, key: bytes) -> CommitVerdict:
        """Return the verdict with a proof that only who has the ledger's key can make."""
        stated = f"gitboot commit status\n{self.commit}\n{self.judgement}\n{self.ledger}\n{self.change}\n"
        proof = base64.urlsafe_b64encode(hmac.digest(key, stated.encode(), "sha256")[:_PROOF_BYTES])
        return replace(self, proof=proof.decode())

    def is_proven(self, key: bytes) -> bool:
        """Return whether who wrote it had the ledger's key."""
        return hmac.compare_digest(self.proof, self.proven(key).proof)

    @property
    def description(self) -> str:
        """As people read it, and as it is found again: the words give way to the witness."""
        proof = f", proof {self.proof}" if self.proof else ""
        witness = f" (ledger {self.ledger}, change {self.change}{proof})"
        room = _LONGEST - len(witness)
        return (self.says if len(self.says) <= room else f"{self.says[: room - 1]}…") + witness


_PROOF_BYTES: Final = 12  # of an HMAC-SHA-256: a description has room for few more


class Witnessed(NamedTuple):
    """How far a ledger had come, by the commit statuses of a forge."""

    proven: int | None = None  # by statuses that the ledger's own instance wrote; None: there is none
    claimed: int | None = None  # by statuses that anyone may have written; None: there is none


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """Where a forge keeps a repository."""

    kind: ForgeKind
    page: str  # URL
    api: str  # URL
    path: str  # OWNER/NAME, with more before it at GitLab

    @classmethod
    def parse(cls, text: str, api: str | None = None, *, allow_token_over_http: bool = False) -> Project:
        """``KIND=URL`` of the project's page, and where the API is if not at its place; raises `UsageError`."""
        name, found, url = text.partition("=")
        if not found or name not in set(ForgeKind):
            raise UsageError(
                f"--forge {text}: expected {', '.join(ForgeKind)}, then = and the URL of the project's page"
            )
        host, parts = host_of(url), urlsplit(url)
        check_credentials(url, "the token of --forge", allow_token_over_http=allow_token_over_http)
        page = parts.path.strip("/").removesuffix(".git")
        path = page.removeprefix(_below(api, parts.scheme, host)) if api is not None else page
        if path.count("/") < 1 or (path.count("/") > 1 and name != ForgeKind.GITLAB):
            raise UsageError(f"--forge {text}: expected the URL of a project's page, which ends in OWNER/NAME")
        root = f"{parts.scheme}://{host}"
        apis = {
            ForgeKind.GITHUB: f"{root}/api/v3",
            ForgeKind.GITLAB: f"{root}/api/v4",
            ForgeKind.GITEA: f"{root}/api/v1",
        }
        if api is None:
            api = "https://api.github.com" if host == "github.com" else apis[ForgeKind(name)]
        return cls(kind=ForgeKind(name), page=f"{root}/{page}", api=api.rstrip("/"), path=path)

    def shows(self, commit: str) -> str:
        """The page of a commit."""
        return f"{self.page}/{'-/' if self.kind is ForgeKind.GITLAB else ''}commit/{commit}"

    def links(self) -> dict[str, str]:
        """Its pages of a commit, of a line and who wrote it, and of a file's history: {commit}, {path}, {line}."""
        root = f"{self.page}/-" if self.kind is ForgeKind.GITLAB else self.page
        at, of = ("commit/", "src") if self.kind is ForgeKind.GITEA else ("", "blob")
        return {
            "commit": f"{root}/commit/{{commit}}",
            "line": f"{root}/{of}/{at}{{commit}}/{{path}}#L{{line}}",
            "blame": f"{root}/blame/{at}{{commit}}/{{path}}#L{{line}}",
            "history": f"{root}/commits/{at}{{commit}}/{{path}}",
        }

    def writes(self, commit: str) -> str:
        """Where a status of a commit is posted."""
        if self.kind is ForgeKind.GITLAB:
            return f"{self.api}/projects/{quote(self.path, safe='')}/statuses/{commit}"
        return f"{self.api}/repos/{quote(self.path)}/statuses/{commit}"

    @property
    def page_size(self) -> int:
        """How many statuses `lists` asks for at once."""
        return 50 if self.kind is ForgeKind.GITEA else 100

    def lists(self, commit: str, name: str) -> str:
        """Where the statuses of a commit are, at least the newest of this name."""
        match self.kind:
            case ForgeKind.GITLAB:
                folder = f"{self.api}/projects/{quote(self.path, safe='')}/repository"
                return f"{folder}/commits/{commit}/statuses?{urlencode({'name': name, 'per_page': 100})}"
            case ForgeKind.GITEA:
                return f"{self.api}/repos/{quote(self.path)}/commits/{commit}/statuses?sort=recentupdate&limit=50"
        return f"{self.api}/repos/{quote(self.path)}/commits/{commit}/statuses?per_page=100"

    def headers(self) -> dict[str, str]:
        """The headers that name the version of the API."""
        if self.kind is ForgeKind.GITHUB:
            return {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
        return {}

    def credentials(self, token: str) -> dict[str, str]:
        """The header that authorizes."""
        match self.kind:
            case ForgeKind.GITLAB:
                return {"PRIVATE-TOKEN": token}
            case ForgeKind.GITEA:
                return {"Authorization": f"token {token}"}
        return {"Authorization": f"Bearer {token}"}


class Forge:
    """One project of a forge. The token is read anew each time, and goes to the host of that project alone."""

    def __init__(
        self,
        project: Project,
        token: Path,
        *,
        name: str,
        link: str | None = None,
        ca_bundle: Path | None = None,
        allow_token_over_http: bool = False,
    ) -> None:
        self._project, self._token, self._name, self._link = project, token, name, link
        self._client = HttpClient(ca_bundle=ca_bundle, allow_token_over_http=allow_token_over_http)

    def write(self, verdict: CommitVerdict) -> None:
        """Make it the commit's status; raises `HostUnreachable` or `ForgeRefused`."""
        body = {
            "state": _STATES[self._project.kind][verdict.judgement],
            "name" if self._project.kind is ForgeKind.GITLAB else "context": self._name,
            "description": verdict.description,
            "target_url": self._link or self._project.shows(verdict.commit),
        }
        self._asked(self._project.writes(verdict.commit), body)

    def latest(self, commits: Iterable[str], ledger: str | None = None) -> CommitVerdict | None:
        """What was written last of the first of these commits that has a verdict; None where none has.

        Given the first-parent line, the newest first, that is the newest known verdict; with a ``ledger`` the newest of
        its instance. Raises as `write` does.
        """
        for commit in commits:
            _, found = self._page(commit)
            for verdict in found:
                if ledger in (None, verdict.ledger):
                    return verdict
        return None

    def witnessed(self, commits: Iterable[str], ledger: str, key: bytes) -> Witnessed:
        """Return how far a ledger had come at least, by the first of these commits that has a proven status of it.

        All statuses of a commit count, and not only the newest: anyone who may write statuses can repeat an old one.
        A commit with more statuses than gitboot reads may hide the proof of a later change. Raises as `write` does.
        """
        claimed: int | None = None
        for commit in commits:
            own = [each for each in self._all(commit) if each.ledger == ledger]
            proven = [each.change for each in own if each.is_proven(key)]
            claimed = max((each.change for each in own if not each.is_proven(key)), default=claimed)
            if proven:
                return Witnessed(max(proven), claimed)
        return Witnessed(None, claimed)

    def _all(self, commit: str) -> list[CommitVerdict]:
        """Return the verdicts on a commit, of the newest pages of its statuses."""
        found: list[CommitVerdict] = []
        for page in range(1, _MOST_PAGES + 1):
            count, verdicts = self._page(commit, page)
            found += verdicts
            if count < self._project.page_size:
                break
        return found

    def _page(self, commit: str, page: int = 1) -> tuple[int, list[CommitVerdict]]:
        """Return how many statuses a page has, and the verdicts among them, the newest first."""
        url = self._project.lists(commit, self._name)
        listed = self._asked(f"{url}&page={page}" if page > 1 else url).json
        statuses = listed if isinstance(listed, list) else []
        own = sorted(filter(self._is_own, statuses), key=lambda each: int(each["id"]), reverse=True)
        verdicts = (_read(commit, each.get("description")) for each in own)
        return len(statuses), [each for each in verdicts if each is not None]

    def _is_own(self, status: Any) -> bool:
        if not isinstance(status, dict) or not isinstance(status.get("id"), int):
            return False
        return self._name in (status.get("context"), status.get("name"))

    def _asked(self, url: str, body: Mapping[str, Any] | None = None) -> WebAnswer:
        headers, credentials = self._project.headers(), self._project.credentials(self._secret())
        answer = self._client.ask(url, headers=headers, credentials=credentials, body=body)
        if answer.status in (HTTPStatus.OK, HTTPStatus.CREATED):
            return answer
        message = f"{host_of(url)} answered {answer.status} {answer.detail}".rstrip()
        limited = answer.status == HTTPStatus.FORBIDDEN and answer.retry_after_s is not None  # GitHub's second limit
        if answer.status >= 500 or answer.status in _AGAIN or limited:
            raise HostUnreachable(message, retry_after_s=answer.retry_after_s)
        raise ForgeRefused(message)

    def _secret(self) -> str:
        try:
            token = self._token.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ForgeRefused(f"{self._token}: the token cannot be read: {error}") from error
        if not token or not token.isprintable():
            raise ForgeRefused(f"{self._token}: expected a token on one line")
        return token


def _read(commit: str, description: object) -> CommitVerdict | None:
    """What a description says, if an instance wrote it."""
    found = _WITNESS.fullmatch(description) if isinstance(description, str) else None
    if found is None:
        return None
    try:
        judgement = judgement_in(found["says"])
    except ValueError:
        return None
    return CommitVerdict(
        commit=commit,
        judgement=judgement,
        says=found["says"],
        ledger=found["ledger"],
        change=int(found["change"]),
        proof=found["proof"] or "",
    )


def judgement_in(says: str) -> Judgement:
    """The judgement that words begin with; ValueError where they begin with none."""
    return Judgement(re.split(r"\W", says, maxsplit=1)[0])


def _below(api: str, scheme: str, host: str) -> str:
    """What the paths of a forge's pages begin with, by where its API is; raises `UsageError`."""
    parts = urlsplit(api)
    if host_of(api) != host or parts.scheme != scheme:
        raise UsageError(f"forge-api {api}: expected a URL at {scheme}://{host}, where the project's page is")
    return re.sub(r"/?api/v\d+/?$", "", parts.path).strip("/") + "/"
