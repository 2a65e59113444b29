"""Which commits of a repository are signed by whom, and which of those that lie ahead may not be accepted for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pygit2

from gitboot.errors import SourceError, UsageError
from gitboot.fleet.revision import Message, Revision, Signer, Verify
from gitboot.git.history import MAX_STEPS, leading_from
from gitboot.git.repository import CommitReader, Stored
from gitboot.openpgp import Distrusted
from gitboot.problems.codes import Code, Problem
from gitboot.source.keys import SignatureKeys
from gitboot.source.signed import AmbiguousSignature, Signed, of_commit, of_tag


class Signatures:
    """Looks at the signatures of a repository's commits, each once for as long as the keys are the same.

    What the repository's configuration, its attributes or a user's Git say does not count: no Git program is run.
    Everything raises `SourceError` where keys or commits cannot be read now.
    """

    def __init__(
        self,
        repository: Stored,
        keys: SignatureKeys,
        verify: Verify | None = None,
        tag_on: Callable[[Revision], bytes | None] = lambda _: None,
    ) -> None:
        self._repository, self._keys, self._verify = repository, keys, verify
        self._tag_on = tag_on  # the annotated tag that is followed, where it points to a commit
        self._known: dict[str, Signer | Distrusted] = {}
        self._mark = ""

    def mark(self, revision: Revision) -> str:
        """What is another where a signature may be judged otherwise by now."""
        mark = self._mark_of_keys()
        if self._verify is not Verify.TAG:
            return mark
        return f"{mark} {pygit2.hash(self._tag_on(revision) or b'')}"

    def faults(self, since: Revision | None, revisions: Sequence[Revision]) -> Mapping[Revision, Problem]:
        """What speaks against these commits, of one first-parent line, the oldest first.

        ``since`` is the accepted one; None: there is none yet, and what led to the newest is not looked at.
        """
        match self._verify:
            case Verify.HEAD:
                found = {each: self._fault(each) for each in revisions}
            case Verify.RANGE:
                found = self._in_range(since, revisions)
            case Verify.TAG:
                found = {each: _untagged(each) for each in revisions[:-1]}
                found |= {each: self._fault_of_tag(each) for each in revisions[-1:]}
            case None:
                return {}
        return {revision: fault for revision, fault in found.items() if fault is not None}

    def signer(self, revision: Revision) -> Signer | None:
        """Whose trusted key vouches for a commit: its own signature, or that of the tag where one is wanted."""
        if self._verify is Verify.TAG:
            tag = self._tag_on(revision)
            found = self._judged(f"tag {revision}", lambda: _signer_of_tag(tag, self._keys)) if tag else None
        else:
            found = self._signer(revision)
        return found if isinstance(found, Signer) else None

    def signed(self, message: Message) -> Message:
        """A message with who has signed its commit, if anyone."""
        found = self._signer(Revision(message.commit))
        return message._replace(signer=found if isinstance(found, Signer) else None)

    def _in_range(self, since: Revision | None, revisions: Sequence[Revision]) -> dict[Revision, Problem | None]:
        newest = revisions[-1]
        with self._repository.reading() as git:
            old = pygit2.Oid(hex=since) if since is not None else None
            line = leading_from(git, old, pygit2.Oid(hex=newest))
            is_cut = line is not None and since not in (None, newest) and _is_cut(git, line[0])
        if line is None:
            what = f"more than {MAX_STEPS} commits lie between it and what was accepted"
            return dict.fromkeys(revisions, _problem(f"{newest[:12]}: {what}; start once with --verify head"))
        failed = next(((at, fault) for at, each in enumerate(line) if (fault := self._fault(each)) is not None), None)
        if failed is None and is_cut:
            raise UsageError(f"this clone is shallow, and lacks what led to {newest[:12]}: fetch more of its history")
        if failed is None:
            return {}
        at, fault = failed
        good = frozenset(line[:at])
        return {each: None if each in good else fault for each in revisions}

    def _fault(self, revision: Revision) -> Problem | None:
        found = self._signer(revision)
        return None if isinstance(found, Signer) else _problem(f"{revision[:12]} is {found}")

    def _fault_of_tag(self, revision: Revision) -> Problem | None:
        tag = self._tag_on(revision)
        if tag is None:
            return _untagged(revision)
        found = self._judged(f"tag {revision}", lambda: _signer_of_tag(tag, self._keys))
        return None if isinstance(found, Signer) else _problem(f"the tag on {revision[:12]} is {found}")

    def _signer(self, revision: Revision) -> Signer | Distrusted:
        return self._judged(revision, lambda: self._signer_of_commit(revision))

    def _judged(self, name: str, judge: Callable[[], Signer]) -> Signer | Distrusted:
        """What was judged of something before, or is now."""
        mark = self._mark_of_keys()
        if mark != self._mark or len(self._known) > _MOST_KNOWN:
            self._known, self._mark = {}, mark
        if name not in self._known or name.startswith("tag "):  # a tag may be another on the same commit
            try:
                self._known[name] = judge()
            except Distrusted as error:
                self._known[name] = error
        return self._known[name]

    def _signer_of_commit(self, revision: Revision) -> Signer:
        with self._repository.reading() as git:
            commit = CommitReader(git).peel(revision)
        return _signer_of(commit.raw, of_commit, self._keys, is_merge=len(commit.parents) > 1)

    def _mark_of_keys(self) -> str:
        try:
            return self._keys.mark()
        except UsageError as error:  # they were read at the start: a person is about to change them
            raise SourceError(str(error)) from error


_MOST_KNOWN: Final = 4096


def _is_cut(git: pygit2.Repository, first: Revision) -> bool:
    """Whether a line of commits begins where a shallow clone does, and not behind what it was to lead back to."""
    return git.is_shallow and not CommitReader(git).peel(first).parents


def _signer_of_tag(raw: bytes, keys: SignatureKeys) -> Signer:
    return _signer_of(raw, of_tag, keys, is_merge=False)


def _signer_of(raw: bytes, read: Callable[[bytes], Signed | None], keys: SignatureKeys, *, is_merge: bool) -> Signer:
    try:
        signed = read(raw)
    except AmbiguousSignature as error:
        raise Distrusted(f"signed in a way that is not read: {error}") from None
    if signed is None:
        raise Distrusted("not signed")
    return keys.signer(signed, is_merge=is_merge)


def _untagged(revision: Revision) -> Problem:
    return _problem(f"{revision[:12]} is not what an annotated tag of that name, which --rev follows, points to")


def _problem(message: str) -> Problem:
    code = Code.UNTRUSTED
    return Problem(path=".", line=1, column=1, code=code, message=message, hint=code.hint)
