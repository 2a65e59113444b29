"""Registries: references, indexes and manifests, and real registries with each way of letting in."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gitboot.artifacts.oci import (
    AllowedRegistry,
    Descriptor,
    OciPlatform,
    OciReference,
    Registries,
    RegistryCredentials,
    choose_manifests,
    find_origin,
    group_layers,
    parse_manifest,
    resolve,
)
from gitboot.errors import HostUnreachable, NotInRegistry, RegistryRefused, UsageError
from gitboot.http_client import HttpClient
from gitboot.jsonio import Digest
from tests.helpers.artifact_servers import (
    BASIC,
    GARDENLINUX,
    IRONCORE,
    PASSWORD,
    USER,
    Certificate,
    Registry,
    ScriptedServer,
    TokenServer,
    build_password_settings,
    digest,
    registry,
    run_scripted_server,
)
from tests.helpers.cases import for_each

KERNEL, INITRD, ROOT = b"kernel" * 1000, b"initrd", b"squashfs"
PXE = [(f"{IRONCORE}kernel", KERNEL), (f"{IRONCORE}initramfs", INITRD), (f"{IRONCORE}squashfs", ROOT)]


@dataclass(frozen=True)
class RegistryServers:
    open: Registry
    password: Registry
    token: Registry
    tokens: TokenServer
    tls: Certificate


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServers]:
    folder = tmp_path_factory.mktemp("registries")
    tls = Certificate.made(folder / "tls")
    tokens = TokenServer(certificate=tls)
    storage = folder / "storage"
    with ExitStack() as stack:
        stack.enter_context(run_scripted_server(tokens, tls))
        anonymous = stack.enter_context(registry(folder / "open", storage=storage))
        password = stack.enter_context(
            registry(folder / "password", storage=storage, more=build_password_settings(folder / "password"))
        )
        token = stack.enter_context(registry(folder / "token", storage=storage, more=tokens.settings(), tls=tls))
        for name in ("os/linux", "open/linux"):
            pxe = anonymous.push_image(name, "pxe", PXE)
            arm = anonymous.push_image(name, "arm", [(f"{GARDENLINUX}kernel", b"arm")])
            uki = anonymous.push_image(name, "uki", [(f"{IRONCORE}uki", b"uki")], {"architecture": "amd64"})
            index = [
                {**pxe, "platform": {"architecture": "amd64", "os": "linux"}, "annotations": {"cname": "metal_pxe-1"}},
                {**uki, "platform": {"architecture": "amd64", "os": "linux"}, "annotations": {"cname": "metal_uki-1"}},
                {**arm, "annotations": {"cname": "metal_pxe-2", "architecture": "arm64"}},
            ]
            anonymous.push_index(name, "1.0", index)
        yield RegistryServers(anonymous, password, token, tokens, tls)


def credentials(folder: Path, host: str, pair: str = BASIC.removeprefix("Basic ")) -> RegistryCredentials:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "auth.json"
    file.write_text(json.dumps({"auths": {host: {"auth": pair}}}))
    file.chmod(0o600)
    return RegistryCredentials(file)


def make_registries(
    found: Registry | ScriptedServer, given: RegistryCredentials | None = None, tls: Certificate | None = None
) -> Registries:
    named = found.allowed if isinstance(found, Registry) else found.url
    return Registries([AllowedRegistry.parse(named)], HttpClient(ca_bundle=tls.certificate if tls else None), given)


def image(found: Registry | ScriptedServer, name: str = "os/linux:1.0") -> OciReference:
    return OciReference.parse(f"oci://{found.host}/{name}")


def test_a_tag_is_resolved_to_the_digest_of_each_file(servers: RegistryServers) -> None:
    found = resolve(image(servers.open), make_registries(servers.open), cname="metal_pxe")
    kernel = f"oci://{servers.open.host}/os/linux@sha256:{digest(KERNEL)}"
    assert found.architectures["x86_64"] == {
        "kernel": {"url": kernel, "sha256": digest(KERNEL), "size": len(KERNEL)},
        "initrds": [{"url": kernel.replace(digest(KERNEL), digest(INITRD)), "sha256": digest(INITRD), "size": 6}],
        "rootfs": {"url": kernel.replace(digest(KERNEL), digest(ROOT)), "sha256": digest(ROOT), "size": 8},
    }
    assert found.architectures["aarch64"]["kernel"]["sha256"] == digest(b"arm")
    assert (
        resolve(found.image, make_registries(servers.open), cname="metal_pxe") == found
        and found.image.digest is not None
    )


def test_an_image_without_an_index_is_for_one_architecture(servers: RegistryServers) -> None:
    asked = make_registries(servers.open)
    assert list(resolve(image(servers.open, "os/linux:uki"), asked).architectures["x86_64"]) == ["uki"]
    with pytest.raises(UsageError, match="specify --architecture"):
        resolve(image(servers.open, "os/linux:pxe"), asked)


def test_a_file_is_streamed_from_any_offset(servers: RegistryServers) -> None:
    kernel = image(servers.open).at(Digest(digest(KERNEL)))
    with make_registries(servers.open).blob(kernel) as whole:
        assert (whole.status, whole.read(1 << 20)) == (200, KERNEL)
    with make_registries(servers.open).blob(kernel, headers={"Range": "bytes=5990-"}) as rest:
        assert (rest.status, rest.read(1 << 20)) == (206, KERNEL[5990:])
    with make_registries(servers.open).blob(kernel, method="HEAD") as head:
        assert (head.headers["Content-Length"], head.read(10)) == (str(len(KERNEL)), b"")


def test_an_absent_image_differs_from_an_unreachable_registry(servers: RegistryServers) -> None:
    asked = make_registries(servers.open)
    for name in ("os/linux:2.0", "nothing:1.0", f"os/linux@sha256:{'0' * 64}"):
        with pytest.raises(NotInRegistry, match="does not exist in the registry"):
            asked.manifest(image(servers.open, name))
    with pytest.raises(NotInRegistry), asked.blob(image(servers.open, f"os/linux@sha256:{'0' * 64}")):
        pass
    gone = Registry("127.0.0.1:1")
    with pytest.raises(HostUnreachable):
        make_registries(gone).manifest(image(gone))


def test_a_registry_asks_for_a_password(servers: RegistryServers, tmp_path: Path) -> None:
    with pytest.raises(RegistryRefused, match="needs credentials: add --registry-credentials"):
        make_registries(servers.password).manifest(image(servers.password))
    assert make_registries(servers.password, credentials(tmp_path, servers.password.host)).manifest(
        image(servers.password)
    )[1]
    for number, wrong in enumerate(("boot:wrong", "stranger:correct horse")):
        given = credentials(tmp_path / str(number), servers.password.host, base64.b64encode(wrong.encode()).decode())
        with pytest.raises(RegistryRefused, match="credentials do not allow access") as refused:
            make_registries(servers.password, given).manifest(image(servers.password))
        assert "wrong" not in str(refused.value)


def test_a_registry_asks_for_a_token(servers: RegistryServers, tmp_path: Path) -> None:
    anonymous = make_registries(servers.token, tls=servers.tls)
    servers.tokens.asked.clear()
    assert resolve(image(servers.token, "open/linux:1.0"), anonymous, cname="metal_pxe").architectures
    assert len(servers.tokens.asked) == 1  # the copy stays
    with pytest.raises(RegistryRefused, match="credentials do not allow access"):
        anonymous.manifest(image(servers.token))
    assert make_registries(servers.token, credentials(tmp_path, servers.token.host), servers.tls).manifest(
        image(servers.token)
    )[1]
    target, headers = servers.tokens.asked[-1]
    assert headers["Authorization"] == BASIC
    assert "scope=repository%3Aos%2Flinux%3Apull" in target and "service=registry" in target


def test_credentials_are_for_one_registry(servers: RegistryServers, tmp_path: Path) -> None:
    given = credentials(tmp_path, "elsewhere.test")
    with pytest.raises(RegistryRefused, match="needs credentials"):
        make_registries(servers.password, given).manifest(image(servers.password))


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("{}", 0o604, "all users can read it"),
        ("[]", 0o600, "is not a registry credentials file"),
        ("\x00", 0o600, "is not a registry credentials file"),
        ('{"auths": {"h": {}}}', 0o600, "must contain USER:PASSWORD"),
        ('{"auths": {"h": {"auth": "ü"}}}', 0o600, "must contain USER:PASSWORD"),
        ('{"auths": {"h": {"identitytoken": "x"}}}', 0o600, "must contain USER:PASSWORD"),
        ('{"auths": {"h": {"auth": "MDAwMDAwMDA6", "identitytoken": "x"}}}', 0o600, "must contain USER:PASSWORD"),
    ],
    ids=["open", "list", "binary", "empty", "not-base64", "refresh-token", "refresh-token-with-user"],
)
def test_an_unusable_file_of_credentials_is_rejected(tmp_path: Path, text: str, mode: int, says: str) -> None:
    file = tmp_path / "auth.json"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(UsageError, match=says):
        RegistryCredentials(file).get_authorization(OciReference.parse("oci://h/os/linux:1"))


def test_a_name_and_a_password_give_the_same_header_as_auth(tmp_path: Path) -> None:
    file = tmp_path / "auth.json"
    file.write_text(json.dumps({"auths": {"h": {"username": USER, "password": PASSWORD}}}))
    file.chmod(0o600)
    assert RegistryCredentials(file).get_authorization(OciReference.parse("oci://h/os/linux:1")) == BASIC


# Keys as in the tests of go-containerregistry, and in containers-auth.json(5).
@pytest.mark.parametrize(
    ("keys", "reference", "user"),
    [
        (["h.test"], "h.test/os/linux:1", "h.test"),
        (["http://h.test/v1/"], "h.test/os/linux:1", "http://h.test/v1/"),
        (["https://h.test:5000/v2/"], "h.test:5000/os/linux:1", "https://h.test:5000/v2/"),
        (["https://h.test"], "h.test/os/linux:1", "https://h.test"),
        (["h.test", "https://h.test"], "h.test/os/linux:1", "h.test"),
        (["h.test", "h.test/os", "h.test/os/linux", "h.test/os/other"], "h.test/os/linux:1", "h.test/os/linux"),
        (["h.test", "h.test/os"], "h.test/os/linux:1", "h.test/os"),
        (["h.test", "h.test/o"], "h.test/os/linux:1", "h.test"),
        (["h.test/other", "h.test:5000", "test"], "h.test/os/linux:1", None),
        (["docker.io/acme"], "registry-1.docker.io/acme/linux:1", "docker.io/acme"),
        (["https://index.docker.io/v1/"], "docker.io/acme/linux:1", "https://index.docker.io/v1/"),
    ],
)
def test_credentials_have_the_keys_of_docker_and_podman(
    tmp_path: Path, keys: list[str], reference: str, user: str | None
) -> None:
    file = tmp_path / "auth.json"
    file.write_text(json.dumps({"auths": {key: {"username": key, "password": "p"} for key in keys}}))
    file.chmod(0o600)
    found = RegistryCredentials(file).get_authorization(OciReference.parse(f"oci://{reference}"))
    expected = base64.b64encode(f"{user}:p".encode()).decode()
    assert found == (f"Basic {expected}" if user is not None else None)


# Responses of a hostile registry, or of an attacker on the way to it.


@contextmanager
def serve_answers(
    answers: Mapping[str, tuple[int, dict[str, str], bytes]], tls: Certificate | None = None
) -> Iterator[ScriptedServer]:
    server = ScriptedServer(answers=dict(answers))
    with run_scripted_server(server, tls):
        yield server


def make_challenge(realm: str) -> tuple[int, dict[str, str], bytes]:
    return 401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="x",scope="repository:any:*"'}, b""


MANIFEST_PATH = "/v2/os/linux/manifests/1.0"


def test_t3_credentials_are_not_sent_to_a_host_that_an_unencrypted_answer_names(
    tmp_path: Path, servers: RegistryServers
) -> None:
    with serve_answers({"/token": (200, {}, b'{"token": "t"}')}, servers.tls) as thief, serve_answers({}) as asked:
        for realm in (
            f"{thief.url}/token",
            "http://[",
            "",
            "file:///etc/passwd",
            asked.url.replace("127.0.0.1", "127.0.0.2"),
        ):
            asked.answers[MANIFEST_PATH] = make_challenge(realm)
            with pytest.raises(RegistryRefused, match="gitboot will not send credentials there"):
                make_registries(asked, credentials(tmp_path, asked.host), servers.tls).manifest(image(asked))
        assert thief.asked == []


def test_t3_credentials_are_not_sent_unencrypted_after_an_encrypted_answer(
    tmp_path: Path, servers: RegistryServers
) -> None:
    with (
        serve_answers({}) as thief,
        serve_answers({MANIFEST_PATH: make_challenge(f"{thief.url}/token")}, servers.tls) as asked,
    ):
        asked.answers[MANIFEST_PATH] = make_challenge(f"{thief.url}/token")
        with pytest.raises(RegistryRefused, match="gitboot will not send credentials there"):
            make_registries(asked, credentials(tmp_path, asked.host), servers.tls).manifest(image(asked))
        assert thief.asked == []


def test_t3_a_redirect_takes_no_token_along(tmp_path: Path) -> None:
    with serve_answers({"/blob": (200, {}, KERNEL)}) as store, serve_answers({}) as asked:
        kernel = image(asked).at(Digest(digest(KERNEL)))
        path = f"/v2/os/linux/blobs/sha256:{digest(KERNEL)}"
        asked.answers = {path: make_challenge(f"{asked.url}/token"), "/token": (200, {}, b'{"access_token": "t"}')}
        moved = 307, {"Location": f"{store.url}/blob?signed"}, b""
        original = asked.answer

        def answer(target: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
            found = original(target, headers)
            return moved if target == path and headers.get("Authorization") == "Bearer t" else found

        asked.answer = answer  # type: ignore[method-assign]
        with make_registries(asked, credentials(tmp_path, asked.host)).blob(kernel) as found:
            assert found.read(1 << 20) == KERNEL
        assert [headers.get("Authorization") for _, headers in store.asked] == [None]
        assert [headers.get("Authorization") for target, headers in asked.asked if "/token" in target] == [BASIC]


@for_each(
    ("answer", "error", "says"),
    [
        ((200, {}, b"{}"), RegistryRefused, "returned different content"),
        ((200, {}, b"x" * ((4 << 20) + 1)), RegistryRefused, "larger than 4 MiB"),
        ((302, {"Location": MANIFEST_PATH}, b""), RegistryRefused, "more than 5 redirects"),
        ((302, {"Location": "file:///etc/passwd"}, b""), RegistryRefused, "redirects to"),
        ((503, {}, b""), HostUnreachable, "try again later"),
        ((429, {}, b""), HostUnreachable, "try again later"),
        ((418, {}, b""), RegistryRefused, "returned 418"),
        ((401, {"WWW-Authenticate": "Negotiate"}, b""), RegistryRefused, "needs credentials"),
    ],
    ids=["another", "large", "round", "file", "503", "429", "418", "negotiate"],
)
def test_wrong_answers_of_a_registry_are_rejected(
    answer: tuple[int, dict[str, str], bytes], error: type[Exception], says: str
) -> None:
    path = f"/v2/os/linux/manifests/sha256:{'0' * 64}"
    with serve_answers({path: answer, MANIFEST_PATH: answer}) as asked, pytest.raises(error, match=says):
        make_registries(asked).manifest(image(asked).at(Digest("0" * 64)))


@dataclass
class PagedTagRegistry(ScriptedServer):
    """A registry with this many pages of two tags each, which only its own links lead to, as those of Quay and ECR."""

    pages: int = 0
    link: str = '</v2/os/linux/tags/list?n=1000&next_page={}>; rel="next"'

    def answer(self, target: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        self.asked.append((target, dict(headers)))
        (page,) = parse_qs(urlsplit(target).query).get("next_page", ["0"])
        first = 2 * int(page)
        link = {"Link": self.link.format(int(page) + 1)} if int(page) + 1 < self.pages else {}
        return 200, link, json.dumps({"name": "os/linux", "tags": [f"1.{first}", f"1.{first + 1}"]}).encode()


# Links as in the tests of oras-go and of go-containerregistry, and in RFC 8288.
@pytest.mark.parametrize(
    "link",
    [
        PagedTagRegistry.link,
        "<https://elsewhere.invalid/v2/os/linux/tags/list?n=1000&next_page={}>;rel=next",
        "</v2/os/linux/tags/list?n=1000&next_page={}>",
        '</v2/os/linux/tags/list?n=9>; rel="prev", </v2/os/linux/tags/list?n=1000&next_page={}>; x="y"; rel="next"',
    ],
)
def test_the_tags_of_a_repository_are_listed_page_by_page(link: str) -> None:
    with run_scripted_server(few := PagedTagRegistry(pages=3, link=link)):
        assert make_registries(few).list_tags(image(few)) == tuple(f"1.{number}" for number in range(6))
        assert [target for target, _ in few.asked] == [
            "/v2/os/linux/tags/list?n=1000",
            "/v2/os/linux/tags/list?n=1000&next_page=1",
            "/v2/os/linux/tags/list?n=1000&next_page=2",
        ]


@pytest.mark.parametrize(
    "link", ["", '</v2/os/linux/tags/list?next_page=0>; rel="prev"', '<https://registry.test/docs>; rel="help"']
)
def test_a_list_of_tags_without_a_link_to_the_next_page_is_complete(link: str) -> None:
    with run_scripted_server(asked := PagedTagRegistry(pages=3, link=link)):
        assert make_registries(asked).list_tags(image(asked)) == ("1.0", "1.1")


@pytest.mark.parametrize(
    "link", ["<", "><", "<>", "/v2/os/linux/tags/list?n=1>", '</v2/os/linux/tags/list>; rel="next"']
)
def test_a_malformed_link_does_not_end_the_list_of_tags(link: str) -> None:
    with (
        run_scripted_server(asked := PagedTagRegistry(pages=3, link=link)),
        pytest.raises(RegistryRefused, match="did not return a valid link to more tags"),
    ):
        make_registries(asked).list_tags(image(asked))


def test_the_number_of_pages_of_tags_is_limited() -> None:
    with (
        run_scripted_server(many := PagedTagRegistry(pages=201)),
        pytest.raises(RegistryRefused, match="more than 200 pages of tags"),
    ):
        make_registries(many).list_tags(image(many))
    with run_scripted_server(same := PagedTagRegistry(pages=201, link="</v2/os/linux/tags/list?n=1000>")):
        assert make_registries(same).list_tags(image(same)) == ("1.0", "1.1")


@for_each(
    ("body", "says"),
    [
        (b"[]", "did not return a list of tags"),
        (b'{"tags": [1]}', "did not return a list of tags"),
        (b"x" * ((4 << 20) + 1), "larger than 4 MiB"),
    ],
)
def test_a_malformed_list_of_tags_is_rejected(body: bytes, says: str) -> None:
    with (
        serve_answers({"/v2/os/linux/tags/list": (200, {}, body)}) as asked,
        pytest.raises(RegistryRefused, match=says),
    ):
        make_registries(asked).list_tags(image(asked))
    with serve_answers({"/v2/os/linux/tags/list": (200, {}, b'{"tags": null}')}) as asked:
        assert make_registries(asked).list_tags(image(asked)) == ()


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token": 1}', b'{"token": "a\\r\\nX: y"}'])
def test_a_malformed_token_is_rejected(body: bytes) -> None:
    with serve_answers({"/token": (200, {}, body)}) as asked:
        asked.answers[MANIFEST_PATH] = make_challenge(f"{asked.url}/token")
        with pytest.raises(RegistryRefused, match="did not issue a token"):
            make_registries(asked).manifest(image(asked))


# Challenges as in the tests of oras-go and of go-containerregistry, and several in one header (RFC 9110, 11.6.1).
@pytest.mark.parametrize(
    "challenge",
    [
        'Bearer realm="{0}/token",service="registry.test",scope="repository:os/linux:pull,push"',
        'bearer realm = "{0}/token"   ,service=registry.test, scope  ="repository:os/linux:pull"  ',
        'Bearer realm="{0}/token",service="registry.test",other=fun,slashed="he\\"\\l\\lo"',
        'Bearer realm="{0}/token",service="registry.test", Basic realm="elsewhere"',
        'Basic realm="elsewhere", Bearer realm="{0}/token",service="registry.test"',
    ],
)
def test_a_challenge_names_the_token_server(challenge: str) -> None:
    with serve_answers({"/token": (200, {}, b'{"token": "t"}')}) as asked:
        asked.answers[MANIFEST_PATH] = (401, {"WWW-Authenticate": challenge.format(asked.url)}, b"")
        with pytest.raises(RegistryRefused, match="credentials do not allow access"):
            make_registries(asked).manifest(image(asked))
        assert "/token?scope=repository%3Aos%2Flinux%3Apull&service=registry.test" in [each for each, _ in asked.asked]


@dataclass
class ExpiringTokenRegistry(ScriptedServer):
    token: str = ""
    given: int = 0

    def answer(self, target: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        if target.startswith("/token"):
            self.given += 1
            self.token = f"token-{self.given}"
            return 200, {}, json.dumps({"token": self.token}).encode()
        good = headers.get("Authorization") == f"Bearer {self.token}"
        return (200, {}, b'{"layers": []}') if good else make_challenge(f"{self.url}/token")


def test_an_expired_token_is_renewed() -> None:
    asked = ExpiringTokenRegistry()
    with run_scripted_server(asked):
        found = make_registries(asked)
        for given in (1, 1, 2):
            if given == 2:
                asked.token = "expired"
            assert (found.manifest(image(asked))[1], asked.given) == (b'{"layers": []}', given)


HEX = "0123456789abcdef" * 4
SHA = f"sha256:{HEX}"
AMD64, ARM64 = OciPlatform("amd64", "linux"), OciPlatform("arm64", "linux")


def entry(cname: str, platform: OciPlatform | None = None, **annotations: str) -> Descriptor:
    return Descriptor(SHA, 1, annotations={"cname": cname, **annotations}, platform=platform)


def layer(media_type: str) -> Descriptor:
    return Descriptor(SHA, 1, media_type=media_type)


@for_each(
    ("index", "cname", "names"),
    [
        ([entry("a", AMD64), entry("b", ARM64)], "", {"x86_64": "a", "aarch64": "b"}),
        (
            [
                entry("a", AMD64),
                entry("b", OciPlatform("riscv64", "linux")),
                entry("c", OciPlatform("amd64", "windows")),
            ],
            "",
            {"x86_64": "a"},
        ),
        (
            [entry("a", OciPlatform("amd64")), entry("attestation", OciPlatform("unknown", "unknown"))],
            "",
            {"x86_64": "a"},
        ),
        ([entry("a", architecture="amd64"), entry("b", architecture="arm64")], "", {"x86_64": "a", "aarch64": "b"}),
        (
            [entry("metal_pxe-amd64", AMD64), entry("metal_uki-amd64", AMD64)],
            "metal_pxe",
            {"x86_64": "metal_pxe-amd64"},
        ),
        ([entry("metal_pxe", AMD64), entry("kvm", ARM64)], "metal_pxe", {"x86_64": "metal_pxe"}),
    ],
    ids=["platforms", "others", "no-system", "annotated", "cname", "cname-of-one"],
)
def test_an_index_has_one_image_an_architecture(index: list[Descriptor], cname: str, names: dict[str, str]) -> None:
    assert {str(each): found.cname for each, found in choose_manifests(index, cname, "x").items()} == names


@pytest.mark.parametrize(
    ("index", "cname", "says"),
    [
        ([entry("metal_pxe", AMD64), entry("metal_uki", AMD64)], "metal", "2 images for x86_64.*metal_pxe, metal_uki"),
        ([entry("metal_pxe", AMD64)], "kvm", "its images are metal_pxe"),
        ([], "", "no image for"),
    ],
)
def test_an_ambiguous_image_is_rejected(index: list[Descriptor], cname: str, says: str) -> None:
    with pytest.raises(RegistryRefused, match=says):
        choose_manifests(index, cname, "x")


@pytest.mark.parametrize(
    ("types", "roles"),
    [
        (
            ["vnd.ironcore.image." + each for each in ("kernel", "initramfs", "squashfs")],
            ["kernel", "initrds", "rootfs"],
        ),
        (["io.gardenlinux." + each for each in ("kernel", "initrd", "squashfs")], ["kernel", "initrds", "rootfs"]),
        (["vnd.ironcore.image." + each for each in ("uki", "iso", "disk.img")], ["uki", "iso"]),
        (["vnd.ironcore.image.vmlinuz.v1alpha1.vmlinuz"], ["kernel"]),
    ],
    ids=["ironcore", "gardenlinux", "direct", "first-version"],
)
def test_the_media_type_of_a_layer_selects_its_field(types: list[str], roles: list[str]) -> None:
    assert list(group_layers([layer(f"application/{each}") for each in types], "x")) == roles


def test_initrds_keep_their_order() -> None:
    layers = [Descriptor("sha256:" + each * 64, 1, media_type="application/io.gardenlinux.initrd") for each in "ba"]
    found = group_layers([layer("application/io.gardenlinux.kernel"), *layers], "x")
    assert [each.sha256[0] for each in found["initrds"]] == ["b", "a"]


@pytest.mark.parametrize(
    ("types", "says"),
    [
        (["vnd.oci.image.layer.v1.tar+gzip"], r"has no kernel, uki or iso .its layer types are .*tar\+gzip"),
        (["vnd.ironcore.image.initramfs"], "has no kernel"),
        ([], "its layer types are none"),
        (["vnd.ironcore.image.kernel", "io.gardenlinux.kernel"], "2 layers"),
    ],
)
def test_layers_that_cannot_be_booted_are_rejected(types: list[str], says: str) -> None:
    with pytest.raises(RegistryRefused, match=says):
        group_layers([layer(f"application/{each}") for each in types], "x")


@for_each(
    "content",
    [
        *(b"", b"{}", b"[]", b"\xff", b'{"layers": 1}', b'{"layers": [], "manifests": []}', b"[" * 100_000),
        json.dumps({"layers": [{"digest": 1, "size": 1}]}).encode(),
        json.dumps({"layers": [{"digest": SHA, "size": "1"}]}).encode(),
    ],
)
def test_a_malformed_manifest_is_rejected(content: bytes) -> None:
    with pytest.raises(RegistryRefused):
        parse_manifest(content, "x")


@for_each("digest", ["sha512:" + "a" * 128, "sha256:" + "A" * 64, "md5:1", "", 'sha256:"\n'])
def test_a_digest_is_a_sha256(digest: str) -> None:
    found: Any = parse_manifest(json.dumps({"layers": [{"digest": digest, "size": 1}]}).encode(), "x")
    with pytest.raises(RegistryRefused, match="not a sha256"):
        _ = found.layers[0].sha256


@pytest.mark.parametrize(
    ("text", "host", "repository", "version"),
    [
        ("oci://registry.test/a:1.2", "registry.test", "a", "1.2"),
        (
            f"oci://registry.test:5000/a/b_c/d--e@sha256:{HEX}",
            "registry.test:5000",
            "a/b_c/d--e",
            f"sha256:{HEX}",
        ),
        (f"oci://[fd00::1]:5000/a:x@sha256:{HEX}", "[fd00::1]:5000", "a", f"sha256:{HEX}"),
    ],
)
def test_a_reference_has_a_host_a_repository_and_a_version(text: str, host: str, repository: str, version: str) -> None:
    found = OciReference.parse(text)
    assert (found.host, found.repository, found.version) == (host, repository, version)
    assert str(found) == text


@for_each(
    "text",
    [
        *("registry.test/a:1", "oci://registry.test/a", "oci://registry.test:1", "oci://user@registry.test/a:1"),
        *(
            "oci://registry.test/../a:1",
            "oci://registry.test/A:1",
            "oci://registry.test/a?b:1",
            "oci://registry.test/a:ä",
        ),
        *(
            "oci://registry.test//a:1",
            f"oci://registry.test/a@sha256:{HEX[1:]}",
            f"oci://registry.test/a@sha512:{HEX}",
        ),
        *("oci://registry.test/a:1/b", "oci://registry.test/a:1\n", f"oci://registry.test/a:{'x' * 129}"),
    ],
)
def test_a_malformed_reference_is_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        OciReference.parse(text)


@for_each(
    ("allowed", "reference", "is_allowed"),
    [
        ("registry.test", "oci://registry.test/any/thing:1", True),
        ("Registry.Test", "oci://registry.TEST/any:1", True),
        ("registry.test", "oci://registry.test:5000/any:1", False),
        ("registry.test:*", "oci://registry.test:5000/any:1", True),
        ("registry.test/os/*", "oci://registry.test/os/a/b:1", True),
        ("registry.test/os/*", "oci://registry.test/other/os/a:1", False),
        ("registry.test/os", "oci://registry.test/os-too:1", False),
        ("*.registry.test", "oci://eu.registry.test/a:1", True),
        ("*.registry.test", "oci://registry.test/a:1", False),
        ("*.registry.test/*", "oci://stranger.test/x.registry.test/a:1", False),
        ("*.registry.test", "oci://registry.test.stranger.test/a:1", False),
        ("docker.io/alpine", "oci://docker.io/debian:1", False),
    ],
)
def test_only_allowed_registries_are_contacted(allowed: str, reference: str, is_allowed: bool) -> None:
    found = OciReference.parse(reference)
    if is_allowed:
        assert find_origin(found, [AllowedRegistry.parse(allowed)]) == f"https://{found.host}"
    else:
        with pytest.raises(RegistryRefused, match="add it to --registries"):
            find_origin(found, [AllowedRegistry.parse(allowed)])


@for_each(
    ("text", "repository"),
    [
        ("oci://docker.io/foo:1", "library/foo"),
        ("oci://index.docker.io/ubuntu-12.04-base:1", "library/ubuntu-12.04-base"),
        ("oci://docker.io/library/foo:1", "library/foo"),
        ("oci://docker.io/fooo/bar:1", "fooo/bar"),
        ("oci://example.com/privatebase:1", "privatebase"),
    ],
)
def test_an_official_image_of_docker_hub_is_in_library(text: str, repository: str) -> None:
    assert AllowedRegistry.parse(text.removeprefix("oci://").removesuffix(":1")).allows(OciReference.parse(text))
    """Cases of distribution, TestParseRepositoryInfo."""
    assert OciReference.parse(text).repository == repository


@for_each("host", ["docker.io", "index.docker.io", "registry-1.docker.io"])
def test_docker_hub_is_contacted_at_the_host_of_its_registry(host: str, tmp_path: Path) -> None:
    """A case of boot-operator, TestExtractRegistryDomain."""
    found = OciReference.parse(f"oci://{host}/org/os:1")
    assert find_origin(found, [AllowedRegistry.parse(host)]) == "https://registry-1.docker.io"
    file = tmp_path / f"{host}.json"
    file.write_text(json.dumps({"auths": {"https://index.docker.io/v1/": {"username": USER, "password": PASSWORD}}}))
    file.chmod(0o600)
    assert RegistryCredentials(file).get_authorization(OciReference.parse(f"oci://{host}/os/linux:1")) == BASIC


def test_a_registry_is_contacted_unencrypted_only_if_configured() -> None:
    found = OciReference.parse("oci://registry.test/a:1")
    named = ["https://registry.test/a", "http://registry.test"]
    assert find_origin(found, [AllowedRegistry.parse(each) for each in named]) == "https://registry.test"
    assert find_origin(found, [AllowedRegistry.parse(each) for each in reversed(named)]) == "http://registry.test"


@for_each("text", ["*", "*.*", "https://*", "*/os", "", "/os", "user@registry.test", "a b"])
def test_a_pattern_that_allows_any_registry_is_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        AllowedRegistry.parse(text)
