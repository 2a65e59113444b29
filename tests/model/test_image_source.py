"""ImageSource: the declarations that gitboot accepts, and the fault of each other one."""

from __future__ import annotations

import pytest

from gitboot.fleet.documents import parse_blob
from gitboot.model.image_source import fill_template
from tests.helpers.fleets import document

KEY = "F88CFEDEFF29A5B4D9523864E25D9AED0593B34A"
ARCHITECTURES = "architectures: {x86_64: amd64}"
RELEASES = "releases: {format: JSONList, url: 'https://a.test/versions'}"
FILES = "files: {kernel: {url: 'https://a.test/{version}/{arch}/vmlinuz'}}"
MINISIGN = "RW" + "Qf" * 27
SMALL = f"{ARCHITECTURES}, {RELEASES}, {FILES}"


def faults(spec: str) -> list[str]:
    parsed = parse_blob(document("ImageSource", "edge-os", spec).encode(), "source.yaml")
    return [f"{each.code} {each.message}; {each.hint}" for each in parsed.problems]


@pytest.mark.parametrize(
    "spec",
    [
        SMALL,
        f"{SMALL}, channels: [stable, beta], checksums: {{url: 'https://a.test/{{channel}}/{{version}}/SUMS'}}",
        f"{SMALL}, keys: [{KEY.lower()}], checksums: {{url: 'https://a.t/S', signature: {{openpgp: '{{url}}.gpg'}}}}",
        f"{SMALL}, keys: [{KEY}], checksums: {{url: 'https://a.test/SUMS', listedIn: {{url: 'https://a.test/In'}}}}",
        f"{SMALL}, keys: [{MINISIGN}], checksums: {{url: 'https://a.t/S', signature: {{minisign: '{{url}}.minisig'}}}}",
        f"{SMALL}, baseURLs: {{x86_64: 'https://a.test/{{version}}'}}",
        f"{SMALL}, image: {{kernelArguments: ['a={{version}}', 'b={{{{ server.architecture }}}}', quiet]}}",
        f"{ARCHITECTURES}, releases: {{format: OCITags, url: 'oci://ghcr.io/edge/os'}}, files: {{uki: {{name: uki}}}}",
        f"{ARCHITECTURES}, {RELEASES}, describedBy: {{format: TreeInfo, url: 'https://a.test/{{version}}/.tree'}}, "
        "files: {kernel: {name: images/pxeboot/vmlinuz}}",
        f"{ARCHITECTURES}, {RELEASES}, files: {{kernel: {{url: 'https://a.test/{{version}}.tar.gz', member: linux}}}}",
    ],
)
def test_a_declaration(spec: str) -> None:
    assert faults(spec) == []


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        (
            SMALL.replace("{version}", "{verison}"),
            'GB1049 spec.files.kernel.url: the placeholder "{verison}" is not allowed here; did you mean version?',
        ),
        (f"{SMALL}, keys: [{KEY}]", "GB1044 spec: `keys` has no effect, because the source has no signature to verify"),
        (
            SMALL.replace("/versions", "/{version}"),
            'GB1049 spec.releases.url: the placeholder "{version}" is not allowed here; use {channel}, {arch}, {base}',
        ),
        (
            SMALL.replace("https://a.test/versions", "assets:versions"),
            "GB1037 spec.releases.url: expected an http, https or oci URL",
        ),
        (
            SMALL.replace("https://a.test/v", "https://a.test/ v"),
            "GB1037 spec.releases.url: expected a URL in plain",
        ),
        (
            SMALL.replace("'https://a.test/versions'", "'https://a.test/versions', match: 'v{arch}'"),
            "GB1049 spec.releases.match: expected a template with {version}",
        ),
        (
            SMALL.replace("JSONList", "DirectoryListing"),
            "GB1044 spec.releases: an index with `format: DirectoryListing` requires `match`; "
            "add a `match` that contains {version}",
        ),
        (
            SMALL.replace("JSONList", "OCITags"),
            "GB1044 spec.releases: `format: OCITags` requires an oci://HOST/NAME URL",
        ),
        (
            SMALL.replace("'https://a.test/versions'", "'https://a.test/v', clearSigned: true, signature: '{url}.gpg'"),
            "GB1044 spec.releases: expected `signature` or `clearSigned`, found both",
        ),
        (
            SMALL.replace("'https://a.test/versions'", "'https://a.test/v', signature: '{url}.gpg'"),
            "GB1044 spec: a signature requires `keys`; add the vendor's keys to `keys`",
        ),
        (
            SMALL.replace(FILES, "files: {kernel: {name: vmlinuz}}"),
            "GB1044 spec: an index with `format: JSONList` does not",
        ),
        (
            SMALL.replace(FILES, "files: {kernel: {member: a}}"),
            "GB1044 spec.files.kernel: the file has neither `url` nor",
        ),
        (SMALL.replace(FILES, "files: {}"), "GB1044 spec.files: the source has no file that a machine can boot"),
        (
            SMALL.replace("{kernel:", "{rootfs: {url: 'https://a.test/{version}'}, iso:"),
            "GB1044 spec.files: `initrds` and `rootfs` require a `kernel`",
        ),
        (
            SMALL.replace("{arch}", "{channel}"),
            "GB1044 spec: {channel} needs channels; add channels, or remove {channel}",
        ),
        (SMALL.replace("https://a.test/{v", "{base}/{v"), "GB1044 spec: {base} needs baseURLs"),
        (f"{SMALL}, baseURLs: {{aarch64: 'https://a.test'}}", "GB1044 spec: baseURLs has no URL for x86_64"),
        (
            f"{SMALL.replace('https://a.test/versions', '{base}/v')}, baseURLs: {{x86_64: 'https://a.test/{{version}}'}}",
            "GB1044 spec: {base} contains {version}, which is unknown until gitboot has read the index",
        ),
        (f"{SMALL}, keys: [0593B34A]", "GB1050 spec.keys[0]: expected an OpenPGP key fingerprint"),
        (
            f"{SMALL}, checksums: {{url: 'https://a.test/S', clearSigned: true}}",
            "GB1044 spec: a signature requires `keys`",
        ),
        (
            f"{SMALL}, checksums: {{url: 'https://e.test/S', clearSigned: true, listedIn: {{url: 'https://e.test/I'}}}}",
            "GB1044 spec.checksums: expected at most one of `signature`, `clearSigned` or `listedIn`",
        ),
        (
            f"{SMALL}, image: {{kernelArguments: ['a={{arch}}']}}",
            'GB1049 spec.image.kernelArguments[0]: the placeholder "{arch}" is not allowed here',
        ),
        (
            f"{SMALL}, image: {{kernelArguments: ['initrd=x']}}",
            "GB3003 spec.image.kernelArguments[0]: only gitboot or the boot",
        ),
        (
            SMALL.replace("vmlinuz'", "vmlinuz', signed: false, signature: {openpgp: '{url}.sig'}"),
            "GB1044 spec.files.kernel: the file has a signature, but sets `signed: false`; remove `signed: false`",
        ),
        (SMALL.replace("{x86_64: amd64}", "{}"), "GB1042 spec.architectures: expected at least one item"),
    ],
)
def test_each_fault_of_a_declaration_has_its_place_and_a_hint(spec: str, fault: str) -> None:
    (found,) = faults(spec)
    assert found.startswith(fault)


def test_only_known_placeholders_are_filled() -> None:
    values = {"version": "1.2", "url": "{version}"}
    assert fill_template("{version}-{other}-{{ image.name }}-{url}", values) == "1.2-{other}-{{ image.name }}-{version}"
