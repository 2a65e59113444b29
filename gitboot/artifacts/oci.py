"""OCI registries: read references, credentials, manifests, layers and tags."""

from __future__ import annotations

import base64
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct, structs

from gitboot.errors import HostUnreachable, NotInRegistry, OperatorError, RegistryRefused, UsageError
from gitboot.files import convert_os_errors
from gitboot.http_client import SLOWEST_DOWNLOAD, TOTAL_S, AnswerStream, HttpClient, MinimumRate, RedirectRefused
from gitboot.jsonio import Digest, build_json_decoder
from gitboot.model.scalars import OCI, Malformed, parse_digest
from gitboot.model.server import Architecture
from gitboot.problems import Code, Problem
from gitboot.text import quote_words

_MOST_REDIRECTS: Final = 5
_TAGS_PER_PAGE: Final = 1000
_MOST_TAG_PAGES: Final = 200  # some registries return only 100 tags in a page
# The manifest size that registries must accept: OCI distribution specification, "Pushing Manifests".
_LARGEST_MANIFEST: Final = 4 << 20
# Docker Hub is called docker.io, but its registry has another host, and `docker login` writes its credentials under
# https://index.docker.io/v1/.
_DOCKER_HUB: Final = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
_DOCKER_HUB_REGISTRY: Final = "registry-1.docker.io"


# References


def _complete_repository(host: str, repository: str) -> str:
    """Return the whole name of a repository.

    As in Docker, a repository of Docker Hub without an organization belongs to the organization library.
    """
    is_short = host in _DOCKER_HUB and "/" not in repository and repository != "*"
    return f"library/{repository}" if is_short else repository


class OciReference(Struct, frozen=True, kw_only=True):
    """An ``oci://HOST/REPOSITORY`` URL with a tag, or with the digest of a manifest or blob."""

    host: str  # the host name, with the port if the reference has one
    repository: str
    tag: str | None
    digest: Digest | None

    @classmethod
    def parse(cls, text: str) -> OciReference:
        """Parse a reference. If the text has both a tag and a digest, the digest takes precedence.

        Raises `UsageError` if the text is malformed, or contains neither a tag nor a digest.
        """
        match = OCI.fullmatch(text)
        if match is None or (match["tag"] is None and match["digest"] is None):
            raise UsageError(
                f"{text!r} is not an image in a registry: expected oci://HOST/NAME:TAG or oci://HOST/NAME@sha256:…"
            )
        return cls(
            host=match["host"],
            repository=_complete_repository(match["host"], match["repository"]),
            tag=match["tag"],
            digest=Digest(match["digest"]) if match["digest"] is not None else None,
        )

    def at(self, digest: Digest) -> OciReference:
        return structs.replace(self, tag=None, digest=digest)

    @property
    def version(self) -> str:
        """The digest of the reference, or the tag if the reference has no digest.

        In the registry API, this value is the last part of a manifest's URL.
        """
        return f"sha256:{self.digest}" if self.digest is not None else self.tag or ""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag is not None else ""
        digest = f"@sha256:{self.digest}" if self.digest is not None else ""
        return f"oci://{self.host}/{self.repository}{tag}{digest}"


class AllowedRegistry(Struct, frozen=True, kw_only=True):
    """A pattern for registries that gitboot may contact.

    The host and the repository may contain the wildcards ``*`` and ``?``.
    """

    scheme: str
    host: str
    repository: str

    @classmethod
    def parse(cls, text: str) -> AllowedRegistry:
        """Parse ``[http://]HOST[/REPOSITORY]``. Without a repository, allow all repositories of the host.

        Raises `UsageError` if the text is malformed, or if the pattern would allow any registry.
        """
        match = re.fullmatch(r"(?P<scheme>https?://)?(?P<host>[^/\s]+)(?:/(?P<repository>\S+))?", text)
        if match is None or "@" in match["host"]:
            raise UsageError(f"{text!r} is not a registry: expected HOST or HOST/REPOSITORY (* matches any text)")
        if set(match["host"]) <= set("*?."):
            raise UsageError(f"{text!r} would allow any registry: specify the host or its domain")
        return cls(
            scheme=(match["scheme"] or "https://").removesuffix("://"),
            host=match["host"].lower(),
            repository=_complete_repository(match["host"].lower(), match["repository"] or "*"),
        )

    def allows(self, reference: OciReference) -> bool:
        # gitboot matches host and repository separately, so that a * in the host cannot match a part of the repository.
        return fnmatchcase(reference.host.lower(), self.host) and fnmatchcase(reference.repository, self.repository)


def find_origin(reference: OciReference, allowed_registries: Iterable[AllowedRegistry]) -> str:
    """Return the scheme and host of a registry. Raises `RegistryRefused` if the registry is not allowed."""
    for registry in allowed_registries:
        if registry.allows(reference):
            host = _DOCKER_HUB_REGISTRY if reference.host in _DOCKER_HUB else reference.host
            return f"{registry.scheme}://{host}"
    raise RegistryRefused(f"{reference.host}/{reference.repository} is not an allowed registry: add it to --registries")


# Credentials


class _Auth(msgspec.Struct):
    auth: str = ""  # base64 of USER:PASSWORD
    username: str = ""
    password: str = ""


class _AuthFile(msgspec.Struct):
    auths: dict[str, _Auth] = {}


_decode_auth_file: Final = build_json_decoder(_AuthFile)


def _normalize_key(key: str) -> str:
    """Return the host, and the repository if there is one, of a key in a credentials file.

    Docker also writes keys such as https://HOST/v1/.
    """
    host, slash, repository = re.sub(r"^https?://(.*?)(?:/(?:v[12]/?)?)?$", r"\1", key).partition("/")
    repository = _complete_repository(host, repository) if repository else ""
    return f"{'docker.io' if host in _DOCKER_HUB else host}{slash}{repository}"


class RegistryCredentials(Struct, frozen=True):
    """A registry credentials file. gitboot reads the file again for each use, because the file may change."""

    file: Path

    def get_authorization(self, reference: OciReference) -> str | None:
        """Return the ``Authorization`` header for a repository.

        Return None if the file contains no credentials for the repository. The most specific key takes precedence:
        HOST/REPOSITORY, the beginning of it, or HOST (containers-auth.json(5)).

        Raises `UsageError` if gitboot cannot read or parse the file.
        """
        auths = self._read().auths
        auths = {_normalize_key(key): auth for key, auth in auths.items()} | auths
        places = [_normalize_key(f"{reference.host}/{reference.repository}")]
        while "/" in places[-1]:
            places.append(places[-1].rpartition("/")[0])
        place, auth = next(((place, auths[place]) for place in places if place in auths), ("", None))
        if auth is None:
            return None
        pair = auth.auth or base64.b64encode(f"{auth.username}:{auth.password}".encode()).decode()
        try:
            user, _, password = base64.b64decode(pair, validate=True).partition(b":")
        except ValueError:
            user, password = b"", b""
        if not user or not password:
            raise UsageError(f"{self.file}: the field `auth` for {place} must contain USER:PASSWORD in base64")
        return f"Basic {pair}"

    def check(self) -> None:
        """Raise `UsageError` if gitboot cannot read the credentials file, or if all users can read the file."""
        self._read()

    def _read(self) -> _AuthFile:
        with convert_os_errors(self.file, "read"), self.file.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read()
        if mode & stat.S_IRWXO:
            raise UsageError(
                f"{self.file} contains passwords, but all users can read it: run `chmod 600 {quote_words(self.file)}`"
            )
        try:
            return _decode_auth_file(content)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise UsageError(
                f'{self.file} is not a registry credentials file: expected {{"auths": {{"HOST": …}}}}'
            ) from None


# Requests


class TagList(msgspec.Struct, frozen=True):
    """One page of the list of tags in a repository."""

    tags: tuple[str, ...] | None = None


_decode_tags: Final = build_json_decoder(TagList)
# A challenge may follow another one in the same header (RFC 9110, 11.6.1).
_BEARER: Final = re.compile(r"(?:^|,)\s*Bearer\s(.*)", re.IGNORECASE)
_PARAMETER: Final = re.compile(r'([A-Za-z]+)\s*=\s*"?((?<=")[^"]*|[^\s,"]+)')
_TOKEN: Final = re.compile(r"[!-~]+")  # a token may contain only these characters, because gitboot sends it in a header
MANIFESTS: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


class Registries:
    """A client for the registries that the operator allows.

    The client authenticates with credentials and cached tokens.
    """

    def __init__(
        self,
        allowed_registries: Sequence[AllowedRegistry],
        client: HttpClient,
        credentials: RegistryCredentials | None = None,
        *,
        deadline_s: float = TOTAL_S,
        rate: MinimumRate = SLOWEST_DOWNLOAD,
    ) -> None:
        """Create a client. Each response except a blob must arrive within ``deadline_s`` seconds.

        The body of a blob must arrive at ``rate`` or faster.
        """
        self._allowed, self._client, self._credentials = tuple(allowed_registries), client, credentials
        self._deadline_s, self._rate = deadline_s, rate
        self._tokens: dict[tuple[str, str], str] = {}  # the Authorization header for each pair of origin and repository

    def manifest(self, reference: OciReference) -> tuple[Digest, bytes]:
        """Return the digest and the content of an index or manifest.

        If the reference contains a digest, the content must match the digest. Raises `RegistryRefused` if gitboot or
        the registry rejects the request, `NotInRegistry` if the manifest does not exist, and `HostUnreachable` if the
        registry does not respond.
        """
        with self._open(reference, f"manifests/{reference.version}", {"Accept": ", ".join(MANIFESTS)}) as answer:
            content = _read_limited(answer, f"the manifest of {reference}")
        digest = Digest(sha256(content).hexdigest())
        if reference.digest not in (None, digest):
            raise RegistryRefused(
                f"the registry returned different content for {reference}, with the digest sha256:{digest}"
            )
        return digest, content

    def list_tags(self, reference: OciReference) -> tuple[str, ...]:
        """Return all tags in the repository that a reference names. Raises the same errors as `manifest`."""
        tags: list[str] = []
        query: str | None = f"n={_TAGS_PER_PAGE}"
        for _ in range(_MOST_TAG_PAGES):
            with self._open(reference, f"tags/list?{query}", {}) as answer:
                content = _read_limited(answer, f"the list of tags for {reference}")
                previous_query, query = query, _find_next_query(", ".join(answer.headers.getlist("Link")), reference)
            try:
                tags += _decode_tags(content).tags or ()
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
                raise RegistryRefused(f"the registry did not return a list of tags for {reference}: {error}") from None
            if query in (None, previous_query):
                return tuple(dict.fromkeys(tags))
        raise RegistryRefused(f"{reference} has more than {_MOST_TAG_PAGES} pages of tags")

    def blob(
        self, reference: OciReference, *, headers: Mapping[str, str] | None = None, method: str = "GET"
    ) -> AbstractContextManager[AnswerStream]:
        """Request a blob, and return a context manager with the response. The caller must verify the digest.

        If the request has a Range header, the status of the response may be 206 or 416. Raises the same errors as
        `manifest`.
        """
        return self._open(reference, f"blobs/{reference.version}", headers or {}, method)

    @contextmanager
    def _open(
        self, reference: OciReference, resource: str, headers: Mapping[str, str], method: str = "GET"
    ) -> Iterator[AnswerStream]:
        origin = find_origin(reference, self._allowed)
        url = f"{origin}/v2/{reference.repository}/{resource}"
        token_key = (origin, reference.repository)
        with self._follow_redirects(url, headers, self._tokens.get(token_key), method) as answer:
            if answer.status != HTTPStatus.UNAUTHORIZED:
                yield _check_answer(answer, reference)
                return
            challenges = answer.headers.getlist("WWW-Authenticate")
        authorization = self._request_authorization(origin, reference, challenges)
        if authorization is None:
            raise RegistryRefused(f"{reference} needs credentials: add --registry-credentials")
        self._tokens[token_key] = authorization
        with self._follow_redirects(url, headers, authorization, method) as answer:
            yield _check_answer(answer, reference)

    @contextmanager
    def _follow_redirects(
        self, url: str, headers: Mapping[str, str], authorization: str | None, method: str
    ) -> Iterator[AnswerStream]:
        """Send a request, follow redirects, and yield the final response. Only the registry itself receives the token.

        Many registries redirect requests for blobs to another host.
        """
        credentials = {"Authorization": authorization or ""}
        options: Any = {"deadline_s": self._deadline_s, "rate": self._rate, "redirects": _MOST_REDIRECTS}
        try:
            with self._client.stream(method, url, headers=headers, credentials=credentials, **options) as answer:
                yield answer
        except (RedirectRefused, UsageError) as error:
            raise RegistryRefused(str(error)) from error

    def _request_authorization(self, origin: str, reference: OciReference, challenges: Sequence[str]) -> str | None:
        """Return the Authorization header that a registry expects, with a new token if the registry uses tokens.

        Return None if there are no credentials for the registry.
        """
        basic_auth = self._credentials.get_authorization(reference) if self._credentials is not None else None
        for challenge in challenges:
            if (bearer := _BEARER.search(challenge)) is not None:
                found = reversed(_PARAMETER.findall(bearer[1]))  # the first value of a name counts
                parameters = {name.lower(): value for name, value in found}
                return self._request_token(origin, reference, parameters, basic_auth)
        return basic_auth

    def _request_token(
        self, origin: str, reference: OciReference, challenge: Mapping[str, str], basic_auth: str | None
    ) -> str:
        realm = challenge.get("realm", "")
        _check_realm(realm, origin)
        query = {"scope": f"repository:{reference.repository}:pull"}
        if "service" in challenge:
            query["service"] = challenge["service"]
        url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
        try:
            answer = self._client.request_json(
                url, credentials={"Authorization": basic_auth or ""}, deadline_s=self._deadline_s
            )
        except UsageError as error:
            raise RegistryRefused(str(error)) from error
        _check_reachable(answer.status, urlsplit(realm).netloc)
        fields = answer.json if isinstance(answer.json, dict) else {}
        token = fields.get("token") or fields.get("access_token")
        if answer.status != HTTPStatus.OK or not isinstance(token, str) or not _TOKEN.fullmatch(token):
            hint = "check the credentials" if basic_auth else "add --registry-credentials"
            raise RegistryRefused(f"{urlsplit(realm).netloc} did not issue a token for {reference}: {hint}")
        return f"Bearer {token}"


_LINK: Final = re.compile(r"<[^<>?]*\?([^<>#]+)[^<>]*>([^<]*)")  # the query, and the parameters of the link


def _find_next_query(links: str, reference: OciReference) -> str | None:
    """Return the query for the next page of tags, or None after the last page.

    gitboot does not compute the query, because some registries use their own page numbers or tokens in it (OCI
    distribution specification, "Listing Tags"). gitboot ignores the rest of the link, so a link never leads to another
    host.
    """
    found = _LINK.findall(links)
    if links and not found and ("rel=" not in links or "next" in links):
        raise RegistryRefused(f"the registry did not return a valid link to more tags for {reference}: {links[:100]!r}")
    return next((query for query, parameters in found if "rel=" not in parameters or "next" in parameters), None)


def _check_realm(realm: str, origin: str) -> None:
    """Raise `RegistryRefused` if an attacker could have chosen the token server.

    A registry on HTTPS may name any token server, because it could also request the credentials itself. A
    plain HTTP response can be forged, so a registry on HTTP must be its own token server.
    """
    try:
        token_server, registry = urlsplit(realm), urlsplit(origin)
        is_same = (token_server.scheme, token_server.netloc) == (registry.scheme, registry.netloc)
        is_allowed = is_same or (
            registry.scheme == token_server.scheme == "https"
            and bool(token_server.hostname)
            and "@" not in token_server.netloc
        )
    except ValueError:
        is_allowed = False
    if not is_allowed:
        raise RegistryRefused(
            f"{origin} refers to the token server {realm[:100]!r}, but gitboot will not send credentials there"
        )


def _read_limited(answer: AnswerStream, subject: str) -> bytes:
    content = b""
    while len(content) <= _LARGEST_MANIFEST and (chunk := answer.read(1 << 16)):
        content += chunk
    if len(content) > _LARGEST_MANIFEST:
        raise RegistryRefused(f"{subject} is larger than {_LARGEST_MANIFEST >> 20} MiB")
    return content


def _check_answer(answer: AnswerStream, reference: OciReference) -> AnswerStream:
    if answer.status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE):
        return answer
    _check_reachable(answer.status, reference.host)
    if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        raise NotInRegistry(f"{reference} does not exist in the registry")
    if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise RegistryRefused(f"the credentials do not allow access to {reference}")
    raise RegistryRefused(f"{reference.host} returned {answer.status} for {reference}")


def _check_reachable(status: int, host: str) -> None:
    if status in (408, 425, 429) or 500 <= status < 600:
        raise HostUnreachable(f"{host} returned {status}: try again later")


# Images


# These media types come from the first version of IronCore's image specification and from Garden Linux.
ROLES: Final[Mapping[str, str]] = {
    "application/vnd.ironcore.image.kernel": "kernel",
    "application/vnd.ironcore.image.initramfs": "initrds",
    "application/vnd.ironcore.image.squashfs": "rootfs",
    "application/vnd.ironcore.image.uki": "uki",
    "application/vnd.ironcore.image.iso": "iso",
    "application/vnd.ironcore.image.vmlinuz.v1alpha1.vmlinuz": "kernel",
    "application/vnd.ironcore.image.initramfs.v1alpha1.initramfs": "initrds",
    "application/vnd.ironcore.image.squashfs.v1alpha1.squashfs": "rootfs",
    "application/io.gardenlinux.kernel": "kernel",
    "application/io.gardenlinux.initrd": "initrds",
    "application/io.gardenlinux.squashfs": "rootfs",
    "application/io.gardenlinux.uki": "uki",
}
_ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "amd64": Architecture.X86_64,
    "arm64": Architecture.AARCH64,
}  # OCI uses the architecture names of Go


class OciPlatform(msgspec.Struct, frozen=True):
    """The platform that an index states for a manifest."""

    architecture: str = ""
    os: str = ""


class Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    """An OCI content descriptor, which refers to content by digest."""

    digest: str
    size: int
    media_type: str = ""
    annotations: dict[str, str] | None = None
    platform: OciPlatform | None = None

    @property
    def sha256(self) -> Digest:
        """The SHA-256 digest of the content.

        Raises `RegistryRefused` if the registry reports a digest that uses another algorithm.
        """
        try:
            return parse_digest(self.digest.removeprefix("sha256:"))
        except Malformed:
            raise RegistryRefused(f"{self.digest[:80]!r} is not a sha256 digest, so gitboot cannot use it") from None

    @property
    def architecture(self) -> Architecture | None:
        """The CPU architecture, or None if the manifest states no architecture or one that gitboot does not support."""
        if self.platform is not None and self.platform.architecture:
            return _ARCHITECTURES.get(self.platform.architecture) if self.platform.os in ("", "linux") else None
        return _ARCHITECTURES.get((self.annotations or {}).get("architecture", ""))

    @property
    def cname(self) -> str:
        """The name of the Garden Linux build, such as metal_pxe-amd64-1877.3."""
        return (self.annotations or {}).get("cname", "")


class ImageManifest(msgspec.Struct, frozen=True):
    """An OCI index, which lists manifests, or an image manifest, which lists layers."""

    manifests: tuple[Descriptor, ...] | None = None
    layers: tuple[Descriptor, ...] | None = None
    annotations: dict[str, str] | None = None


_decode_manifest: Final = build_json_decoder(ImageManifest)


def parse_manifest(content: bytes, name: str) -> ImageManifest:
    """Parse an index or an image manifest. Raises `RegistryRefused` if the content is malformed."""
    try:
        manifest = _decode_manifest(content)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RegistryRefused(f"{name} is not an image manifest: {error}") from None
    if (manifest.manifests is None) == (manifest.layers is None):
        raise RegistryRefused(f"{name} is neither an image index nor an image manifest")
    return manifest


def choose_manifests(index: Sequence[Descriptor], cname: str, name: str) -> dict[Architecture, Descriptor]:
    """Return the manifests whose cname starts with ``cname``, one for each architecture.

    Raises `RegistryRefused` if there is no such manifest, or if an architecture has several such manifests.
    """
    candidates: dict[Architecture, list[Descriptor]] = {}
    for manifest in index:
        if (architecture := manifest.architecture) is not None and manifest.cname.startswith(cname):
            candidates.setdefault(architecture, []).append(manifest)
    for architecture, manifests in candidates.items():
        if len(manifests) > 1:
            names = ", ".join(sorted({manifest.cname or manifest.digest for manifest in manifests}))
            raise RegistryRefused(
                f"{name} has {len(manifests)} images for {architecture}; choose one with --cname and the beginning of "
                f"its name: {names}"
            )
    if not candidates:
        known = ", ".join(sorted({manifest.cname for manifest in index if manifest.cname}))
        hint = f"; its images are {known}" if cname and known else ""
        raise RegistryRefused(f"{name} has no image for {' or '.join(Architecture)}{hint}")
    return {architecture: candidates[architecture][0] for architecture in sorted(candidates)}


def group_layers(layers: Sequence[Descriptor], name: str) -> dict[str, tuple[Descriptor, ...]]:
    """Return the layers of an image, grouped by the BootImage field to which they belong.

    gitboot ignores layers that do not belong to a BootImage field, such as disk images. Raises `RegistryRefused` if the
    image has no kernel, UKI or ISO, or has several layers for a field other than initrds.
    """
    layers_by_role: dict[str, tuple[Descriptor, ...]] = {}
    for layer in layers:
        if (role := ROLES.get(layer.media_type)) is not None:
            layers_by_role[role] = (*layers_by_role.get(role, ()), layer)
    if not layers_by_role.keys() & {"kernel", "uki", "iso"}:
        types = ", ".join(sorted({layer.media_type for layer in layers})) or "none"
        raise RegistryRefused(f"{name} has no kernel, uki or iso (its layer types are {types})")
    for role, role_layers in layers_by_role.items():
        if role != "initrds" and len(role_layers) > 1:
            raise RegistryRefused(
                f"{name} has {len(role_layers)} layers of type {role_layers[0].media_type}, but gitboot expects one"
            )
    return layers_by_role


class ResolvedImage(Struct, frozen=True, kw_only=True):
    """The files of the image that a registry reference currently resolves to."""

    image: OciReference  # the reference with the digest of the index or manifest in place of the tag
    architectures: dict[str, dict[str, Any]]  # the value of spec.architectures for a BootImage


def resolve(
    reference: OciReference, registries: Registries, *, cname: str = "", architecture: Architecture | None = None
) -> ResolvedImage:
    """Look up the files of an image in a registry, for all architectures or only for ``architecture``.

    If the reference names a single manifest and not an index, ``architecture`` replaces the architecture that the
    manifest states.

    Raises the same errors as `Registries.manifest`. Raises `UsageError` if the reference names a single manifest, but
    neither the manifest nor ``architecture`` states the architecture.
    """
    digest, content = registries.manifest(reference)
    image = parse_manifest(content, str(reference))
    architectures: dict[str, dict[str, Any]] = {}
    if image.layers is not None:
        stated = architecture or Descriptor(digest, 0, annotations=image.annotations).architecture
        if stated is None:
            raise UsageError(f"{reference} is a single manifest without an architecture: specify --architecture")
        architectures[str(stated)] = _build_artifacts(image.layers, reference)
    else:
        for listed, descriptor in choose_manifests(image.manifests or (), cname, str(reference)).items():
            if architecture in (None, listed):
                manifest_reference = reference.at(descriptor.sha256)
                _, manifest_content = registries.manifest(manifest_reference)
                manifest = parse_manifest(manifest_content, str(manifest_reference))
                architectures[str(listed)] = _build_artifacts(manifest.layers or (), manifest_reference)
    return ResolvedImage(image=reference.at(digest), architectures=architectures)


def _build_artifacts(layers: tuple[Descriptor, ...], reference: OciReference) -> dict[str, Any]:
    """Return the files of an architecture as YAML values, in the order of the fields in a BootImage."""
    layers_by_role = group_layers(layers, str(reference))
    artifacts: dict[str, Any] = {}
    for role in ("kernel", "initrds", "rootfs", "uki", "iso"):
        files = [
            {"url": str(reference.at(layer.sha256)), "sha256": layer.sha256, "size": layer.size}
            for layer in layers_by_role.get(role, ())
        ]
        if files:
            artifacts[role] = files if role == "initrds" else files[0]
    return artifacts


def add_digest_hints(problems: Iterable[Problem], registries: Registries) -> tuple[Problem, ...]:
    """Return the problems, with a new hint for each problem about an image reference that contains a tag.

    The new hint contains the digests that the tag currently resolves to, or the error if the lookup failed.
    """

    @cache
    def format_hint(image: str) -> str:
        try:
            resolved = resolve(OciReference.parse(image), registries)
        except (HostUnreachable, OperatorError) as error:
            return (
                f"run `gitboot artifacts resolve {quote_words(image)}` to print the fields (the lookup failed: {error})"
            )
        hints = []
        for architecture, artifacts in resolved.architectures.items():
            for role, value in artifacts.items():
                files = value if isinstance(value, list) else [value]
                hints.append(f"{architecture}.{role} is {', '.join(file['url'] for file in files)}")
        return "; ".join(hints)

    def add_hint(problem: Problem) -> Problem:
        image = OCI.search(problem.message) if problem.code == Code.OCI_TAG else None
        if image is None or not image["tag"]:
            return problem
        return structs.replace(problem, hint=format_hint(image[0].partition("@")[0]))

    return tuple(map(add_hint, problems))
