"""Signatures on commits and tags: verify SSH and OpenPGP signatures with trusted keys."""

from __future__ import annotations

import os
import re
import shutil
from base64 import b64decode
from binascii import Error as InvalidBase64
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import pygit2
from msgspec import Struct

from gitboot.child_processes import ProcessResult, run_with_input
from gitboot.errors import SourceError, UsageError
from gitboot.fleet.revision import Message, Revision, Signer, Verify
from gitboot.git.history import MAX_STEPS, list_first_parents_since
from gitboot.git.repository import CommitReader, StoredRepository, split_signatures
from gitboot.problems import Code, Problem
from gitboot.text import one_line

_MAX_VERDICTS: Final = 4096  # the maximum number of cached results
_TIMEOUT_S: Final = 600  # this is enough for an image of several gigabytes on a slow disk
_SSH_KEY: Final = re.compile(rb"(?:sk-)?(?:ssh|ecdsa)-[a-z0-9@.-]+ [A-Za-z0-9+/=]+")
_FINGERPRINT: Final = re.compile(r" key (SHA256:\S+)")
_BEGIN: Final = re.compile(rb"^-----BEGIN (?:PGP SIGNATURE|SSH SIGNATURE)-----$", re.MULTILINE)
# With these options of gpg(1), gpg does not ask, download keys or start other programs, and trusts each imported key.
_GPG_OPTIONS: Final = (
    "--no-options",
    "--batch",
    "--no-tty",
    "--quiet",
    "--status-fd=1",
    "--no-autostart",
    "--disable-dirmngr",
    "--no-auto-key-retrieve",
    "--no-auto-key-locate",
    "--no-auto-check-trustdb",
    "--trust-model=always",
)
_CLASS_FIELD: Final = 9  # the index of the signature class in VALIDSIG, in hexadecimal digits
_BINARY_CLASS: Final = "00"
_VERDICTS: Final = {
    "GOODSIG": "",
    "EXPSIG": "signed by the key {key} with a signature that has expired",
    "EXPKEYSIG": "signed by the key {key}, which has expired",
    "REVKEYSIG": "signed by the key {key}, which was revoked",
    "BADSIG": "not valid: the content changed after it was signed",
    "ERRSIG": "signed by the key {key} in a way that gpg cannot check",
}
_SIGNATURE: Final = 2  # tags of packets (RFC 4880, 4.3)
_MARKER: Final = 10  # gpg ignores packets of this kind
_INVALID_TAG: Final = -1


class UntrustedSignature(Exception):
    """The error for a signature that is not trusted. Its message completes a sentence that begins with "it is"."""


class UnlistedKey(UntrustedSignature):
    """The error for a signature by a key that is not in the files with trusted keys."""


class SignedContent(NamedTuple):
    """A signature, and the bytes that it signs."""

    payload: bytes
    signature: bytes


# Signatures on commits and tags


class SignatureChecker:
    """Checks the signatures on a repository's commits, and caches the results until the trusted keys change.

    The checks do not run Git, so Git configuration and Git attributes have no effect. Each method raises `SourceError`
    if gitboot cannot currently read keys or commits.
    """

    def __init__(
        self,
        repository: StoredRepository,
        keys: SignatureKeys,
        verify: Verify | None = None,
        read_tag: Callable[[Revision], bytes | None] = lambda _: None,
    ) -> None:
        self._repository, self._keys, self._verify = repository, keys, verify
        # a function that returns the followed annotated tag if the tag points to this commit, or None
        self._read_tag = read_tag
        self._verdicts: dict[str, Signer | UntrustedSignature] = {}
        self._fingerprint = ""

    def fingerprint(self, revision: Revision) -> str:
        """Return a text that changes whenever the result of checking this commit's signature may change."""
        key_fingerprint = self._get_key_fingerprint()
        if self._verify is not Verify.TAG:
            return key_fingerprint
        return f"{key_fingerprint} {pygit2.hash(self._read_tag(revision) or b'')}"

    def find_faults(self, since: Revision | None, revisions: Sequence[Revision]) -> Mapping[Revision, Problem]:
        """Return the signature problem of each commit that has one.

        ``revisions`` are first-parent commits, the oldest first. ``since`` is the accepted commit. If ``since`` is
        None, because gitboot has not accepted a commit yet, gitboot checks only the newest commit.
        """
        match self._verify:
            case Verify.HEAD:
                faults = {revision: self._find_fault(revision) for revision in revisions}
            case Verify.RANGE:
                faults = self._check_range(since, revisions)
            case Verify.TAG:  # only the newest commit can have the tag
                faults = {revision: _build_tag_fault(revision, None) for revision in revisions[:-1]}
                for newest in revisions[-1:]:
                    faults[newest] = _build_tag_fault(newest, self._find_tagger(newest))
            case None:
                return {}
        return {revision: fault for revision, fault in faults.items() if fault is not None}

    def find_signer(self, revision: Revision) -> Signer | None:
        """Return the trusted signer of a commit or, if gitboot verifies tags, of the tag that points to the commit.

        Return None if there is no trusted signature.
        """
        signer = self._find_tagger(revision) if self._verify is Verify.TAG else self._find_commit_signer(revision)
        return signer if isinstance(signer, Signer) else None

    def add_signer(self, message: Message) -> Message:
        """Return a message with the trusted signer of its commit, or with None if there is no trusted signature."""
        signer = self._find_commit_signer(Revision(message.commit))
        return message._replace(signer=signer if isinstance(signer, Signer) else None)

    def _check_range(self, since: Revision | None, revisions: Sequence[Revision]) -> dict[Revision, Problem | None]:
        newest = revisions[-1]
        with self._repository.open() as git:
            old = pygit2.Oid(hex=since) if since is not None else None
            line = list_first_parents_since(git, old, pygit2.Oid(hex=newest))
            # The first-parent history of a shallow clone may end before it reaches the accepted commit.
            is_cut = (
                git.is_shallow
                and line is not None
                and since not in (None, newest)
                and not CommitReader(git).peel(line[0]).parents
            )
        if line is None:
            problem = Code.UNTRUSTED.build_problem(
                f"commit {newest[:12]} is more than {MAX_STEPS} commits ahead of the accepted commit; start gitboot "
                "once with `--verify head`"
            )
            return dict.fromkeys(revisions, problem)
        good: set[Revision] = set()
        for revision in line:
            fault = self._find_fault(revision)
            if fault is not None:
                return {each: None if each in good else fault for each in revisions}
            good.add(revision)
        if is_cut:
            raise UsageError(
                f"this shallow clone does not contain the commits before {newest[:12]}; fetch more of its history"
            )
        return {}

    def _find_fault(self, revision: Revision) -> Problem | None:
        signer = self._find_commit_signer(revision)
        if isinstance(signer, Signer):
            return None
        return Code.UNTRUSTED.build_problem(f"{revision[:12]} is {signer}")

    def _find_tagger(self, revision: Revision) -> Signer | UntrustedSignature | None:
        """Return the signer of the tag that points to a commit, or the reason why the signature is not trusted.

        Return None if there is no tag.
        """
        tag = self._read_tag(revision)
        if tag is None:
            return None
        return self._cache_verdict(
            f"tag {revision}", lambda: self._keys.find_signer(parse_tag_signature(tag), is_merge=False)
        )

    def _find_commit_signer(self, revision: Revision) -> Signer | UntrustedSignature:
        def judge() -> Signer:
            with self._repository.open() as git:
                commit = CommitReader(git).peel(revision)
            return self._keys.find_signer(parse_commit_signature(commit.raw), is_merge=len(commit.parents) > 1)

        return self._cache_verdict(revision, judge)

    def _cache_verdict(self, name: str, judge: Callable[[], Signer]) -> Signer | UntrustedSignature:
        key_fingerprint = self._get_key_fingerprint()
        if key_fingerprint != self._fingerprint or len(self._verdicts) > _MAX_VERDICTS:
            self._verdicts, self._fingerprint = {}, key_fingerprint
        if name not in self._verdicts or name.startswith("tag "):  # the commit may have another tag now
            try:
                self._verdicts[name] = judge()
            except UntrustedSignature as error:
                self._verdicts[name] = error
        return self._verdicts[name]

    def _get_key_fingerprint(self) -> str:
        try:
            return self._keys.fingerprint()
        except UsageError as error:  # the keys were valid at the start, so a person is probably changing the files now
            raise SourceError(str(error)) from error


def parse_untrusted_commit(problem: Problem) -> str | None:
    """Return the first 12 digits of the commit in a message about an untrusted signature, or None without a commit."""
    match = re.match(r"([0-9a-f]{12}) is ", problem.message)
    return match[1] if match is not None else None


def _build_tag_fault(revision: Revision, signer: Signer | UntrustedSignature | None) -> Problem | None:
    if isinstance(signer, Signer):
        return None
    if signer is None:
        return Code.UNTRUSTED.build_problem(f"--rev does not name an annotated tag that points to {revision[:12]}")
    return Code.UNTRUSTED.build_problem(f"the tag on {revision[:12]} is {signer}")


# Trusted keys


class TrustedKeys(Struct, frozen=True, kw_only=True):
    """The files that contain the trusted public keys."""

    allowed_signers: Path | None = None  # a file with keys of people in the format of ssh-keygen(1)
    openpgp_keys: Path | None = None  # a file with public keys of people, or a directory with such files
    # (name, file) for each forge; the file contains OpenPGP or SSH public keys
    forge_keys: tuple[tuple[str, Path], ...] = ()

    @property
    def has_personal_keys(self) -> bool:
        return self.allowed_signers is not None or self.openpgp_keys is not None

    @property
    def has_keys(self) -> bool:
        return self.has_personal_keys or bool(self.forge_keys)


class SignatureKeys:
    """Reads the current trusted keys, and uses them to check signatures. gpg stores its files in ``folder``."""

    def __init__(self, trusted_keys: TrustedKeys, folder: Path) -> None:
        self._trusted, self._folder = trusted_keys, folder
        self._fingerprint = ""
        self._personal_keys: tuple[_AllowedSigners | Keyring, ...] = ()
        self._forge_keys: dict[str, _AllowedSigners | Keyring] = {}

    def fingerprint(self) -> str:
        """Return a text that changes when a person adds or removes a key.

        Raises `UsageError` if gitboot cannot read a file.
        """
        trusted = self._trusted
        paths: list[Path] = []
        if trusted.allowed_signers is not None:
            paths.append(trusted.allowed_signers)
        if trusted.openpgp_keys is not None:
            paths += _list_key_files(trusted.openpgp_keys)
        paths += [path for _, path in trusted.forge_keys]
        digest = sha256()
        for path in paths:
            try:
                digest.update(sha256(path.read_bytes()).digest())
            except OSError as error:
                raise UsageError(f"{path}: {error.strerror}") from None
        if self._fingerprint != digest.hexdigest():
            self._load_keys()
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def find_signer(self, signature: SignedContent, *, is_merge: bool) -> Signer:
        """Return the owner of the trusted key that made a signature. A forge's key is trusted only for merge commits.

        The key must be valid now, because a committer can choose the date in a commit. Raises `UntrustedSignature` if
        no trusted key made the signature.
        """
        self.fingerprint()
        unlisted = UnlistedKey("signed by a key that is not listed as trusted")
        for keys in self._personal_keys:
            try:
                return _find_signer(keys, signature)
            except UnlistedKey as error:
                unlisted = error
        for name, keys in self._forge_keys.items():
            try:
                signer = _find_signer(keys, signature)
            except UnlistedKey:
                continue
            if not is_merge:
                raise UntrustedSignature(f"signed by the forge {name}, whose key is trusted only for merge commits")
            return Signer(name, signer.key, is_forge=True)
        raise unlisted

    def _load_keys(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True)
        people: list[_AllowedSigners | Keyring] = []
        if (path := self._trusted.allowed_signers) is not None:
            people.append(_AllowedSigners(path, self._folder))
        if (path := self._trusted.openpgp_keys) is not None:
            people.append(Keyring.create(_list_key_files(path), self._folder / "people"))
        self._personal_keys, self._forge_keys = tuple(people), {}
        for number, (name, path) in enumerate(self._trusted.forge_keys):
            signers = self._folder / f"forge-{number}.signers"
            if ssh_keys := [line for line in path.read_bytes().split(b"\n") if _SSH_KEY.match(line)]:
                signers.write_bytes(b"".join(b'forge namespaces="git" %b\n' % line for line in ssh_keys))
                self._forge_keys[name] = _AllowedSigners(signers, self._folder)
            else:
                self._forge_keys[name] = Keyring.create([path], self._folder / f"forge-{number}")


def _list_key_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if not file.name.startswith(".") and file.is_file())
    if not files:
        raise UsageError(f"the directory {path} does not contain a public key file")
    return files


class _AllowedSigners:
    """A file with trusted SSH keys in the format of ssh-keygen(1), ALLOWED SIGNERS."""

    def __init__(self, path: Path, scratch: Path) -> None:
        self._path, self._scratch = path.absolute(), scratch

    def find_signer(self, signed: SignedContent) -> Signer:
        if not signed.signature.startswith(b"-----BEGIN SSH SIGNATURE-----"):
            raise UnlistedKey("signed by an OpenPGP key, but no OpenPGP keys are configured")
        with TemporaryDirectory(dir=self._scratch) as folder:
            signature = Path(folder, "signature")
            signature.write_bytes(signed.signature)
            validity = self._run_ssh_keygen("check-novalidate", "-n", "git", "-s", signature, stdin=signed.payload)
            match = _FINGERPRINT.search(validity.output)
            if validity.status != 0 or match is None:
                raise UntrustedSignature("not valid: the content changed after it was signed")
            key = match[1]
            principals = self._run_ssh_keygen("find-principals", "-f", self._path, "-s", signature)
            for principal in principals.output.splitlines():
                arguments = ("-n", "git", "-f", self._path, "-I", principal, "-s", signature)
                verdict = self._run_ssh_keygen("verify", *arguments, stdin=signed.payload)
                if verdict.status == 0 and verdict.output.startswith(f'Good "git" signature for {principal} with '):
                    return Signer(one_line(principal), key)
        for fault in ("has expired", "is not yet valid"):
            if f"key {fault}" in principals.errors:
                raise UntrustedSignature(f"signed by the key {key}, which {fault}")
        if principals.status == 0:
            raise UntrustedSignature(
                f"signed by the key {key}, whose allowed-signers entry does not allow Git signatures"
            )
        raise UnlistedKey(f"signed by the key {key}, which is not listed as a trusted key")

    def _run_ssh_keygen(self, action: str, *arguments: str | Path, stdin: bytes = b"") -> ProcessResult:
        return run_isolated(["ssh-keygen", "-Y", action, *map(str, arguments)], stdin, self._scratch)


def _find_signer(keys: _AllowedSigners | Keyring, signature: SignedContent) -> Signer:
    if isinstance(keys, _AllowedSigners):
        return keys.find_signer(signature)
    if not signature.signature.startswith(b"-----BEGIN PGP SIGNATURE-----"):
        raise UnlistedKey("signed by an SSH key, but no allowed-signers file is configured")
    signer = keys.find_signer(signature.signature, signature.payload, takes_text=False)
    return signer._replace(person=one_line(signer.person))


# Signed content


def parse_commit_signature(raw: bytes) -> SignedContent:
    """Split a signed commit into its content and its signature.

    Raises `UntrustedSignature` if the commit is not signed, or if programs could interpret its signatures differently.
    """
    payload, signatures = split_signatures(raw)
    if not signatures:
        raise UntrustedSignature("not signed")
    unsupported = "signed in a way that gitboot does not support"
    if any(signature.startswith(b"gpgsig-") for signature in signatures):
        raise UntrustedSignature(
            f"{unsupported}: the object has a signature for a repository with a different hash algorithm"
        )
    if len(signatures) > 1:
        raise UntrustedSignature(f"{unsupported}: the object has more than one signature")
    return SignedContent(payload, signatures[0].removeprefix(b"gpgsig ").replace(b"\n ", b"\n"))


def parse_tag_signature(raw: bytes) -> SignedContent:
    """Split a signed annotated tag into its content and its signature.

    Raises `UntrustedSignature` if the tag is not signed.
    """
    starts = [match.start() for match in _BEGIN.finditer(raw)]
    if not starts or starts[-1] == 0:
        raise UntrustedSignature("not signed")
    return SignedContent(raw[: starts[-1]], raw[starts[-1] :])


# OpenPGP keys


class Keyring:
    """OpenPGP keys in a separate gpg home directory."""

    def __init__(self, home: Path) -> None:
        self._home = home

    @classmethod
    def create(cls, files: Sequence[Path], home: Path) -> Keyring:
        home.mkdir(mode=0o700)
        keyring = cls(home)
        for path in files:
            if "IMPORT_OK" not in keyring._run_gpg("--import", str(path.absolute())).output:
                raise UsageError(f"{path} contains no OpenPGP public key that gpg can read")
        return keyring

    def find_signer(self, signature: bytes, payload: bytes | Path, *, takes_text: bool = True) -> Signer:
        """Return the owner of the key that signed these bytes or this file.

        Raises `UntrustedSignature` if no key in this keyring made the signature. With ``takes_text``, text signatures
        are allowed. A text signature is also valid for the same text with other line endings (RFC 4880, 5.2.1).
        """
        packets = b"".join(split_openpgp_signatures(signature))
        with TemporaryDirectory(dir=self._home) as folder:
            detached = Path(folder, "signature")
            detached.write_bytes(packets)
            if isinstance(payload, Path):
                result = self._run_gpg("--verify", str(detached), str(payload.absolute()))
            else:
                result = self._run_gpg("--verify", str(detached), "-", stdin=payload)
            return _parse_gpg_status(result, takes_text=takes_text)

    def read_clear_text(self, message: bytes) -> tuple[bytes, Signer]:
        """Return the text and the signer of a clear-signed message.

        Raises `UntrustedSignature` if the signature is not valid. The message must be one frame with one signature (RFC
        4880, 7), without text outside the frame.
        """
        with TemporaryDirectory(dir=self._home) as folder:
            framed = Path(folder, "message")
            text = Path(folder, "text")
            framed.write_bytes(message)
            signer = _parse_gpg_status(self._run_gpg("--output", str(text), "--decrypt", str(framed)), takes_text=True)
            return text.read_bytes(), signer

    def export_key(self, fingerprint: str) -> str | None:
        """Return a public key with its self-signatures, such as a revocation, as armoured text.

        Return None if the keyring does not contain the key.
        """
        options = ("--armor", "--export-options", "export-minimal")
        lines = self._run_gpg(*options, "--export", f"0x{fingerprint}").output.splitlines()
        return "\n".join(line for line in lines if not line.startswith("[GNUPG:]")) or None

    def _run_gpg(self, *arguments: str, stdin: bytes = b"") -> ProcessResult:
        return run_isolated(["gpg", "--homedir", str(self._home), *_GPG_OPTIONS, *arguments], stdin, self._home)


# OpenPGP packets and the output of gpg


def split_openpgp_signatures(data: bytes) -> list[bytes]:
    """Return the packets of one or more OpenPGP signatures, after removing any armour.

    Raises `UntrustedSignature` if there are other packets. For example, gpg would decompress a compressed packet, and
    810 bytes can expand to a gigabyte.
    """
    packets = list(_read_packets(_remove_armour(data)))
    if not {tag for tag, _ in packets} <= {_SIGNATURE, _MARKER}:
        raise UntrustedSignature(
            "signed in a way that gitboot does not support: the signature is incomplete or contains "
            "packets that are not signatures"
        )
    return [packet for tag, packet in packets if tag == _SIGNATURE]


def _remove_armour(data: bytes) -> bytes:
    """Return the packets in armoured signatures (RFC 4880, 6.2). Other data is returned unchanged.

    gitboot does not check the checksum of the armour, which is optional (RFC 9580, 6.1), because the signature itself
    detects changes.
    """
    if not data.lstrip().startswith(b"-----"):
        return data
    packets = b""
    body: bytes | None = None  # the Base64 text of the current armour; None: the line is outside of an armour
    for line in map(bytes.strip, data.splitlines()):
        if line == b"-----BEGIN PGP SIGNATURE-----":
            body = b""
        elif line == b"-----END PGP SIGNATURE-----" and body is not None:
            try:
                packets += b64decode(body, validate=True)
            except InvalidBase64:
                return data
            body = None
        # the line is neither a header nor the checksum
        elif body is not None and b":" not in line and not line.startswith(b"="):
            body += line
    return packets or data


def _read_packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the OpenPGP packets with their tags (RFC 4880, 4.2).

    An incomplete packet yields `_INVALID_TAG` and ends the iteration.
    """
    at = 0
    while at < len(data):
        first, more = data[at], data[at + 1 : at + 6]
        if first & 0xC0 == 0xC0:
            tag, kind = first & 0x3F, more[0] if more else 0xE0
            if kind < 0xC0:
                header, size = 2, kind
            elif kind < 0xE0:
                header, size = 3, ((kind - 0xC0) << 8) + int.from_bytes(more[1:2]) + 0xC0
            elif kind == 0xFF:
                header, size = 6, int.from_bytes(more[1:5])
            else:  # the length is in parts, which is allowed only for data packets
                tag, header, size = _INVALID_TAG, 1, 0
        else:
            tag, kind = (first >> 2) & 0xF, 1 << (first & 3)
            header, size = 1 + kind, int.from_bytes(more[:kind])
            # the data is not a packet, or is a packet without a length that ends with the file
            if not first & 0x80 or kind == 8:
                tag = _INVALID_TAG
        packet = data[at : at + header + size]
        tag = tag if len(packet) == header + size else _INVALID_TAG
        yield tag, packet
        if tag == _INVALID_TAG:
            return
        at += header + size


def _parse_gpg_status(result: ProcessResult, *, takes_text: bool) -> Signer:
    """Parse gpg's status lines (GnuPG's doc/DETAILS, "Format of the --status-fd output")."""
    status_lines = [line.removeprefix("[GNUPG:] ").split(" ") for line in result.output.splitlines()]
    verdicts = [words for words in status_lines if words[0] in _VERDICTS]
    if len(verdicts) != 1:
        raise UntrustedSignature("signed in a format that gpg cannot read")
    (verdict,) = verdicts
    key = verdict[1] if len(verdict) > 1 else "?"
    if verdict[0] == "ERRSIG" and verdict[6:7] == ["9"]:
        raise UnlistedKey(f"signed by the key {key}, which is not listed as a trusted key")
    if verdict[0] != "GOODSIG":
        raise UntrustedSignature(_VERDICTS[verdict[0]].format(key=key))
    valid = [words for words in status_lines if words[0] == "VALIDSIG"]
    if result.status != 0 or len(valid) != 1:
        raise UntrustedSignature("signed in a way that gpg does not accept")
    if not takes_text and valid[0][_CLASS_FIELD] != _BINARY_CLASS:
        raise UntrustedSignature(
            "signed in text mode, so the signature also matches other content; sign again without gpg's `--textmode`"
        )
    return Signer(" ".join(verdict[2:]), valid[0][-1])


def run_isolated(command: Sequence[str], stdin: bytes, home: Path) -> ProcessResult:
    """Run a program that checks signatures, in a minimal environment.

    Raises `UsageError` if the program is not installed.
    """
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "LC_ALL": "C", "TZ": "UTC"}
    try:
        return run_with_input(command, input_data=stdin, environment=environment, patience_s=_TIMEOUT_S)
    except FileNotFoundError:
        package = {"ssh-keygen": "OpenSSH", "gpg": "GnuPG", "minisign": "minisign"}[command[0]]
        raise UsageError(f"{command[0]} is not installed: install {package} to let gitboot check signatures") from None
    except (OSError, TimeoutError) as error:
        raise SourceError(f"{command[0]} could not check a signature: {error}") from error
