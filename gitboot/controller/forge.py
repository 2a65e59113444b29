"""Forge (GitHub, GitLab, Gitea): report commit statuses, and read the ledger's change number back from them."""

from __future__ import annotations

import base64
import hmac
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, quote_plus, urlsplit

from msgspec import Struct, structs

from gitboot.background_threads import FIRST_RETRY_S, RetryingSender
from gitboot.controller.commit_judgement import describe_acceptance, describe_holding_guards, describe_invalid_commit
from gitboot.controller.instance.settings import Settings
from gitboot.errors import ForgeRefused, HostUnreachable, SourceError, UsageError
from gitboot.fleet.revision import Revision
from gitboot.git.clone import Source
from gitboot.http_client import HttpClient, WebAnswer, check_credentials, format_host
from gitboot.ledger.instance_tables import ensure_status_key
from gitboot.ledger.store import Store
from gitboot.problems import Severity
from gitboot.status.instance_status import ForgeReport, Status
from gitboot.text import redact_url

_MAX_DESCRIPTION: Final = 140  # maximum length of a description at GitHub; GitLab and Gitea accept 255 characters
_PROOF_BYTES: Final = 12  # leading bytes of an HMAC-SHA-256; a description has no room for more
_MAX_PAGES: Final = 10  # pages of statuses to read for one commit; GitHub accepts 1000 statuses per name
_RETRY_STATUSES: Final = frozenset({408, 409, 423, 425, 429})
# gitboot reports the ledger's change number once the ledger has not changed for this long.
_PROGRESS_PAUSE_S: Final = 300.0
_MAX_PAUSES: Final = 12  # after this many pauses, report the change number even if the ledger keeps changing
_MAX_VERDICTS: Final = 20  # maximum number of waiting verdicts; the oldest verdicts are dropped


class ForgeKind(StrEnum):
    """The kinds of forges that gitboot supports."""

    GITHUB = "github"
    GITLAB = "gitlab"
    GITEA = "gitea"


class Judgement(StrEnum):
    """An instance's judgement on a commit."""

    ACCEPTED = "accepted"
    HELD = "held"
    INVALID = "invalid"


class _Api(NamedTuple):
    post: str  # path for posting a commit status, relative to the API's URL
    listing: str  # path for listing a commit's statuses: at least the newest status of each name
    page_size: int  # number of statuses per page of `listing`
    name_key: str  # the JSON key that contains the name of a status
    credentials: tuple[str, str]  # the header that carries the token, and the text before the token
    states: Mapping[Judgement, str]
    headers: Mapping[str, str]
    version: str  # version of the API at its usual URL


# GitLab rejects a second `pending`, so gitboot reports a held commit as `failed` until it accepts the commit.
_APIS: Final = {
    ForgeKind.GITHUB: _Api(
        post="repos/{path}/statuses/{commit}",
        listing="repos/{path}/commits/{commit}/statuses?per_page=100",
        page_size=100,
        name_key="context",
        credentials=("Authorization", "Bearer "),
        states={Judgement.ACCEPTED: "success", Judgement.HELD: "failure", Judgement.INVALID: "error"},
        headers={"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"},
        version="v3",
    ),
    ForgeKind.GITLAB: _Api(
        post="projects/{path}/statuses/{commit}",
        listing="projects/{path}/repository/commits/{commit}/statuses?name={name}&per_page=100",
        page_size=100,
        name_key="name",
        credentials=("PRIVATE-TOKEN", ""),
        version="v4",
        states={Judgement.ACCEPTED: "success", Judgement.HELD: "failed", Judgement.INVALID: "failed"},
        headers={},
    ),
    ForgeKind.GITEA: _Api(
        post="repos/{path}/statuses/{commit}",
        listing="repos/{path}/commits/{commit}/statuses?sort=recentupdate&limit=50",
        page_size=50,
        name_key="context",
        credentials=("Authorization", "token "),
        version="v1",
        states={Judgement.ACCEPTED: "success", Judgement.HELD: "failure", Judgement.INVALID: "error"},
        headers={},
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitVerdict:
    """An instance's verdict on a commit, as reported in a commit status."""

    commit: str
    judgement: Judgement
    says: str  # a few words that begin with the judgement
    ledger: str  # the identity of the instance's ledger
    change: int  # the number of the ledger's newest change
    # Proves that an instance with this ledger wrote the verdict: see `with_proof`.
    proof: str = field(default="", compare=False)

    def with_proof(self, key: bytes) -> CommitVerdict:
        """Return the verdict with a proof that only an instance with the ledger's key can compute."""
        statement = f"gitboot commit status\n{self.commit}\n{self.judgement}\n{self.ledger}\n{self.change}\n"
        proof = hmac.digest(key, statement.encode(), "sha256")[:_PROOF_BYTES]
        return replace(self, proof=base64.urlsafe_b64encode(proof).decode())

    def is_proven(self, key: bytes) -> bool:
        """Return whether the verdict has the proof of the ledger with this key."""
        return hmac.compare_digest(self.proof, self.with_proof(key).proof)

    @property
    def description(self) -> str:
        """The description of the commit status, at most 140 characters long. `says` is cut if it is too long."""
        proof = f", proof {self.proof}" if self.proof else ""
        ledger_text = f" (ledger {self.ledger}, change {self.change}{proof})"
        says, max_length = self.says, _MAX_DESCRIPTION - len(ledger_text)
        if len(says) > max_length:
            says = f"{says[: max_length - 1]}…"
        return says + ledger_text


class KnownChanges(NamedTuple):
    """The newest change numbers of a ledger, as found in commit statuses.

    A number is None if no status with such a number was found.
    """

    proven: int | None = None  # from statuses with a proof
    claimed: int | None = None  # from statuses without a proof, which anyone may have written


class Project(Struct, frozen=True, kw_only=True):
    """A project at a forge, with its page and its API."""

    kind: ForgeKind
    page: str  # URL
    api: str  # URL
    path: str  # OWNER/NAME, possibly with parent groups at GitLab

    @classmethod
    def parse(cls, text: str, api: str | None = None, *, allow_token_over_http: bool = False) -> Project:
        """Parse ``KIND=URL``. The URL is the page of the project.

        ``api`` is the URL of the API if the API is not at the usual path. Raises `UsageError`.
        """
        name, separator, url = text.partition("=")
        if not separator or name not in set(ForgeKind):
            raise UsageError(
                f"--forge {redact_url(text, may_be_path=False)}: expected KIND=URL with the URL of the project's page; "
                f"KIND is one of {', '.join(ForgeKind)}"
            )
        host = format_host(url).lower()
        parts = urlsplit(url)
        check_credentials(url, "the --forge token", allow_token_over_http=allow_token_over_http)
        page = path = parts.path.strip("/").removesuffix(".git")
        if api is not None:
            path = page.removeprefix(_derive_page_prefix(api, parts.scheme, host))
        if path.count("/") < 1 or (path.count("/") > 1 and name != ForgeKind.GITLAB):
            raise UsageError(
                f"--forge {name}={redact_url(url)}: expected the URL of a project's page, which ends in OWNER/NAME"
            )
        root = f"{parts.scheme}://{host}"
        # *.ghe.com is GitHub Enterprise Cloud with data residency.
        if api is None and (host == "github.com" or host.endswith(".ghe.com")):
            api = f"https://api.{host}"
        elif api is None:
            api = f"{root}/api/{_APIS[ForgeKind(name)].version}"
        return cls(kind=ForgeKind(name), page=f"{root}/{page}", api=api.rstrip("/"), path=path)

    def links(self) -> dict[str, str]:
        """Return URL templates for a commit, a line, the blame view of a line, and the history of a file.

        The templates contain {commit}, {path} and {line}.
        """
        root = f"{self.page}/-" if self.kind is ForgeKind.GITLAB else self.page
        commit_prefix, file_view = ("commit/", "src") if self.kind is ForgeKind.GITEA else ("", "blob")
        return {
            "commit": f"{root}/commit/{{commit}}",
            "line": f"{root}/{file_view}/{commit_prefix}{{commit}}/{{path}}#L{{line}}",
            "blame": f"{root}/blame/{commit_prefix}{{commit}}/{{path}}#L{{line}}",
            "history": f"{root}/commits/{commit_prefix}{{commit}}/{{path}}",
        }

    def api_url(self, template: str, commit: str, name: str) -> str:
        """Return the URL of an API call about the status ``name`` of a commit."""
        path = quote(self.path, safe="" if self.kind is ForgeKind.GITLAB else "/")
        return f"{self.api}/{template.format(path=path, commit=commit, name=quote_plus(name))}"


class Forge:
    """A client for a project at a forge.

    The client reads the token before each request, and sends the token only to the project's host.
    """

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
        self._project = project
        self._token = token
        self._name = name  # of the commit statuses
        self._link = link  # the URL in the commit statuses; None: the page of the commit
        self._api = _APIS[project.kind]
        self._client = HttpClient(ca_bundle=ca_bundle, allow_token_over_http=allow_token_over_http)

    def write(self, verdict: CommitVerdict) -> None:
        """Post the verdict as a status of its commit. Raises `HostUnreachable` or `ForgeRefused`."""
        self._send_request(
            self._project.api_url(self._api.post, verdict.commit, self._name),
            {
                "state": self._api.states[verdict.judgement],
                self._api.name_key: self._name,
                "description": verdict.description,
                "target_url": self._link or self._project.links()["commit"].format(commit=verdict.commit),
            },
        )

    def find_latest(self, commit: str, ledger: str) -> CommitVerdict | None:
        """Return the newest verdict from this ledger on a commit. Raises `HostUnreachable` or `ForgeRefused`."""
        _, verdicts = self._read_page(commit)
        return next((each for each in verdicts if each.ledger == ledger), None)

    def find_known_changes(self, commits: Iterable[str], ledger: str, key: bytes) -> KnownChanges:
        """Return a ledger's change numbers, read from the first of these commits that has a status with a proof.

        All statuses of a commit are read, because anyone who may write statuses can repeat an old one. A later change
        number is missed if the commit has more statuses than gitboot reads.

        Raises `HostUnreachable` or `ForgeRefused`.
        """
        claimed: int | None = None
        for commit in commits:
            ledger_verdicts: list[CommitVerdict] = []
            for page in range(1, _MAX_PAGES + 1):
                count, verdicts = self._read_page(commit, page)
                ledger_verdicts += [verdict for verdict in verdicts if verdict.ledger == ledger]
                if count < self._api.page_size:
                    break
            proven = [verdict.change for verdict in ledger_verdicts if verdict.is_proven(key)]
            unproven = [verdict.change for verdict in ledger_verdicts if not verdict.is_proven(key)]
            claimed = max(unproven, default=claimed)
            if proven:
                return KnownChanges(max(proven), claimed)
        return KnownChanges(None, claimed)

    def _read_page(self, commit: str, page: int = 1) -> tuple[int, list[CommitVerdict]]:
        """Return the number of statuses on a page, and the verdicts among them, newest first."""
        url = self._project.api_url(self._api.listing, commit, self._name)
        listed = self._send_request(f"{url}&page={page}" if page > 1 else url).json
        statuses: list[Any] = listed if isinstance(listed, list) else []
        own_statuses = [
            status
            for status in statuses
            if isinstance(status, dict)
            and isinstance(status.get("id"), int)
            and self._name in (status.get("context"), status.get("name"))
        ]
        own_statuses.sort(key=lambda status: int(status["id"]), reverse=True)
        verdicts = (_parse_description(commit, status.get("description")) for status in own_statuses)
        return len(statuses), [verdict for verdict in verdicts if verdict is not None]

    def _send_request(self, url: str, body: Mapping[str, Any] | None = None) -> WebAnswer:
        """Send a request with the token. Raises `HostUnreachable` if a retry may succeed, otherwise `ForgeRefused`."""
        try:
            token = self._token.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ForgeRefused(f"{self._token}: cannot read the token for the forge: {error}") from error
        if not token or not token.isprintable():
            raise ForgeRefused(f"{self._token}: expected a token on one line")
        header, prefix = self._api.credentials
        answer = self._client.request_json(
            url, headers=self._api.headers, credentials={header: prefix + token}, body=body
        )
        if answer.status in (HTTPStatus.OK, HTTPStatus.CREATED):
            return answer
        message = f"{format_host(url)} returned {answer.status} {answer.detail}".rstrip()
        # GitHub reports rate limits with this status, and with or without a time.
        is_rate_limited = answer.status == HTTPStatus.FORBIDDEN and (
            answer.retry_after_s is not None or "rate limit" in answer.detail
        )
        if answer.status >= 500 or answer.status in _RETRY_STATUSES or is_rate_limited:
            raise HostUnreachable(message, retry_after_s=answer.retry_after_s)
        raise ForgeRefused(message)


_DESCRIPTION: Final = re.compile(
    r"(?P<says>.*) \(ledger (?P<ledger>[^\s,]+), change (?P<change>[0-9]{1,18})"
    r"(?:, proof (?P<proof>[A-Za-z0-9_-]{16}))?\)"
)


def _parse_description(commit: str, description: object) -> CommitVerdict | None:
    """Parse the verdict in a description. Return None if no instance of gitboot wrote the description."""
    match = _DESCRIPTION.fullmatch(description) if isinstance(description, str) else None
    if match is None:
        return None
    try:
        judgement = parse_judgement(match["says"])
    except ValueError:
        return None
    return CommitVerdict(
        commit=commit,
        judgement=judgement,
        says=match["says"],
        ledger=match["ledger"],
        change=int(match["change"]),
        proof=match["proof"] or "",
    )


def parse_judgement(text: str) -> Judgement:
    """Parse the judgement at the beginning of a text. Raises ValueError."""
    return Judgement(re.split(r"\W", text, maxsplit=1)[0])


def _derive_page_prefix(api: str, scheme: str, host: str) -> str:
    """Derive the path prefix of a forge's pages from the URL of its API. Raises `UsageError`."""
    parts = urlsplit(api)
    if format_host(api).lower() != host or parts.scheme != scheme:
        raise UsageError(f"forge-api {api}: the URL must begin with {scheme}://{host}, like the project's URL")
    return re.sub(r"/?api/v\d+/?$", "", parts.path).strip("/") + "/"


def list_verdicts(status: Status, change: int) -> list[CommitVerdict]:
    """Return an instance's verdicts on the newest commits, oldest first. Return [] if the Fleet names another ledger.

    The result does not contain the newest commit until gitboot has judged it.
    """
    if (
        status.attempted is None
        or status.ledger is None
        or any(each.type == "LedgerNamed" and not each.status for each in status.conditions)
    ):
        return []
    results = [(passed.commit, passed.says) for passed in status.passed_commits[-_MAX_VERDICTS:]]
    if status.held is not None:
        results.append((status.attempted, describe_holding_guards(status.held.guards)))
    elif status.accepted == status.attempted:
        names = [each.by for each in status.acknowledged if each.commit == status.attempted]
        results.append((status.attempted, describe_acceptance(names)))
    elif any(problem.severity is Severity.ERROR for problem in status.problems):
        results.append((status.attempted, describe_invalid_commit(status.problems)))
    return [
        CommitVerdict(commit=commit, judgement=parse_judgement(says), says=says, ledger=status.ledger, change=change)
        for commit, says in results
    ]


class VerdictSender(RetryingSender):
    """A thread that reports verdicts to a forge, so that the caller of `submit_verdicts` does not wait for the forge.

    Each report contains the ledger's change number. At its next start, the instance uses this number to detect whether
    the ledger is an older copy. If the ledger changes without a new verdict, the number is reported after a pause. With
    ``reads_changes_first``, the thread reports only after `read_known_changes` has succeeded.
    """

    def __init__(
        self,
        forge: Forge,
        wake: Callable[[], None],
        *,
        first_retry_s: float = FIRST_RETRY_S,
        quiet_s: float = _PROGRESS_PAUSE_S,
        reads_changes_first: bool = False,
    ) -> None:
        super().__init__("forge", wake, first_retry_s=first_retry_s)
        self._forge, self._quiet_s = forge, quiet_s
        self._waiting: dict[str, CommitVerdict] = {}  # verdicts to report, by commit, oldest first
        self._last_verdicts: dict[str, CommitVerdict] = {}  # the last verdict on each commit
        self._newest_verdict: CommitVerdict | None = None  # the newest of these verdicts
        # When the first and the last unreported change were noted.
        self._progress_times: tuple[float, float] | None = None
        self._key = b""  # the ledger's key, set by `read_known_changes`
        self._forge_report = ForgeReport(has_asked=not reads_changes_first)
        self._may_report = not reads_changes_first
        self.start()

    @property
    def forge_report(self) -> ForgeReport:
        """The state of reporting to the forge."""
        return structs.replace(self._forge_report, failure=self.failure)

    @property
    def is_done(self) -> bool:
        return not self._waiting or not self._may_report

    def read_known_changes(self, commits: Sequence[str], ledger: str, key: bytes) -> None:
        """Read the change numbers of a ledger from the statuses of these commits. Do nothing after the first success.

        ``key`` is the ledger's key for proofs, and is also used for later reports. This method waits for the forge, so
        do not call it from the thread that reconciles. A call without ``commits`` counts as a failed attempt.
        """
        if self._may_report:
            return
        try:
            known = self._forge.find_known_changes(commits, ledger, key) if commits else KnownChanges()
        except (HostUnreachable, ForgeRefused) as error:
            self._update_report(has_asked=True)
            self.note_failure(type(error).__name__, str(error))
            return
        with self.changed:
            self._key = key
            self._may_report = bool(commits)
            self._update_report(has_asked=True, known_changes=known.proven, claimed_changes=known.claimed)
        self.note_failure(None)

    def submit_verdicts(self, verdicts: Iterable[CommitVerdict]) -> None:
        """Queue each verdict that differs from the last verdict on its commit."""
        with self.changed:
            for verdict in verdicts:
                before = self._last_verdicts.pop(verdict.commit, None)
                newest = self._newest_verdict
                self._last_verdicts[verdict.commit] = verdict
                self._newest_verdict = verdict
                if before is None or replace(verdict, change=before.change) != before:
                    self._enqueue(verdict)
                elif newest is not None and verdict.change != newest.change:
                    now = time.monotonic()
                    first = self._progress_times[0] if self._progress_times is not None else now
                    self._progress_times = (first, now)
            while len(self._last_verdicts) > 2 * _MAX_VERDICTS:
                del self._last_verdicts[next(iter(self._last_verdicts))]
            self.changed.notify_all()

    def close(self, *, timeout_s: float = 0) -> None:
        """End the thread after waiting at most ``timeout_s`` seconds for the queued reports to be sent."""
        with self.changed:
            self._enqueue_progress(is_closing=True)
            self.changed.notify_all()
        super().close(timeout_s=timeout_s)

    def _enqueue(self, verdict: CommitVerdict) -> None:
        """Queue a verdict as the last one, instead of an earlier verdict on its commit."""
        self._progress_times = None
        self._waiting.pop(verdict.commit, None)
        self._waiting[verdict.commit] = verdict
        while len(self._waiting) > _MAX_VERDICTS:
            del self._waiting[next(iter(self._waiting))]

    def _enqueue_progress(self, *, is_closing: bool = False) -> float | None:
        """Queue a report of the change number if it is due. Return the seconds until a later report is due, or None."""
        if self._progress_times is None or self._newest_verdict is None:
            return None
        first, last = self._progress_times
        due_s = min(last + self._quiet_s, first + _MAX_PAUSES * self._quiet_s) - time.monotonic()
        if due_s > 0 and not is_closing:
            return due_s
        self._enqueue(self._newest_verdict)
        return None

    def _update_report(self, **changed: Any) -> None:
        """Replace these values of the report, and wake the instance if a value is new."""
        with self.changed:
            before, self._forge_report = self._forge_report, structs.replace(self._forge_report, **changed)
        if self._forge_report != before:
            self.wake()

    def send_next(self) -> None:
        """Wait for the next verdict, and report it. Raises `HostUnreachable` or `ForgeRefused`."""
        with self.changed:
            wait_s = self._enqueue_progress()
            while self.is_done:
                if self.is_ending:
                    return
                self.changed.wait(wait_s if self._may_report else None)
                wait_s = self._enqueue_progress()
            verdict = next(iter(self._waiting.values()))
        self._write(verdict)
        with self.changed:
            if self._waiting.get(verdict.commit) == verdict:
                del self._waiting[verdict.commit]
        self._update_report(commit=verdict.commit, report=verdict.says)

    def _write(self, verdict: CommitVerdict) -> None:
        """Post the verdict, unless the forge already has the same verdict, for example after a restart.

        GitHub accepts 1000 statuses per commit. If only the change number is new, the error that GitHub returns for a
        further status is ignored.
        """
        verdict = verdict.with_proof(self._key)
        known = self._forge.find_latest(verdict.commit, verdict.ledger)
        try:
            if known is None or known.description != verdict.description:
                self._forge.write(verdict)
        except ForgeRefused:
            if known is None or not known.is_proven(self._key):
                raise
            expected = replace(known, change=verdict.change).with_proof(self._key)
            if expected.description != verdict.description:
                raise


class ForgeReader:
    """Reads the ledger's change number from a forge before an active instance reports anything to it."""

    def __init__(self, verdicts: VerdictSender, source: Source, store: Store) -> None:
        self._verdicts = verdicts
        self._source = source
        self._ledger, _ = store.progress
        self._key = ensure_status_key(store)

    @property
    def forge_report(self) -> ForgeReport:
        return self._verdicts.forge_report

    def read_known_changes(self, *, has_fetched: bool) -> None:
        """Read the change number from the statuses of the newest commits. Do nothing after the first success."""
        commits: tuple[Revision, ...] = ()
        with suppress(SourceError):
            commits = list_first_parents(self._source) if has_fetched else ()
        self._verdicts.read_known_changes(commits, self._ledger, self._key)


def list_first_parents(source: Source) -> tuple[Revision, ...]:
    """Return the first-parent commits from the newest fetched commit back to the accepted commit, newest first."""
    latest, accepted = source.latest(), source.accepted()
    if latest is None:
        return ()
    revisions = tuple(revision for revision, _ in reversed(source.merges(accepted, latest))) or (latest,)
    return revisions if accepted is None or accepted in revisions else (*revisions, accepted)


def find_project(settings: Settings) -> Project | None:
    """Return the project that the option --forge names, or None. Raises `UsageError`."""
    if (forge_settings := settings.forge) is None:
        return None
    return Project.parse(
        forge_settings.project, forge_settings.api, allow_token_over_http=forge_settings.allow_token_over_http
    )


@contextmanager
def send_verdicts(
    settings: Settings, wake: Callable[[], None], *, timeout_s: float = 0
) -> Iterator[VerdictSender | None]:
    """Yield the sender of verdicts to the configured forge, or None if no forge is configured.

    At the end of the block, wait at most ``timeout_s`` seconds for the queued reports to be sent.
    """
    forge_settings, project = settings.forge, find_project(settings)
    if forge_settings is None or project is None:
        yield None
        return
    forge = Forge(
        project,
        forge_settings.token,
        name=forge_settings.name,
        link=forge_settings.link,
        ca_bundle=settings.git.ca_bundle,
        allow_token_over_http=forge_settings.allow_token_over_http,
    )
    verdicts = VerdictSender(forge, wake, reads_changes_first=True)
    try:
        yield verdicts
    finally:
        verdicts.close(timeout_s=timeout_s)
