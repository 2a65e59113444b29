"""The provenance of images in a review: claims, results of checks, and boots without the signatures of a stream."""

from __future__ import annotations

import json

import click
import pytest

from gitboot.cli.commands.diff import format_review_text
from gitboot.errors import UsageError
from gitboot.jsonio import format_document
from gitboot.problems import Code
from gitboot.review.formats import phrases
from gitboot.review.formats.json import as_json
from gitboot.review.formats.markdown import as_markdown, as_problems
from gitboot.review.guards import Limits
from gitboot.review.images import FileSigner, SignatureResult, parse_signature_results
from gitboot.review.review import Review, ReviewOutcome, review_commits
from gitboot.review.risks import Risk
from tests.helpers.cases import for_each
from tests.helpers.evaluations import FLEET, Files, review_files
from tests.helpers.fleets import SHA, document, image, maintenance, profile, server

KEY = "F88CFEDEFF29A5B4D9523864E25D9AED0593B34A"
OTHER_KEY = "567E347AD0044ADE55BA8A5F199E2F91FD431D51"
SIGNATURE = "https://vendor.test/kernel.sig"
SIGNED = f"provenance: {{digest: signed, key: {KEY}}}"


DISKLESS = "writesDisk: false"


def make_image(more: str, spec: str = "", name: str = "new-3") -> str:
    """An image whose kernel has more fields."""
    return image(name, spec, artifacts="kernel").replace(f"sha256: {SHA}", f"sha256: {SHA}, {more}")


def with_signature(claim: str) -> Files:
    return {"images/3.yaml": make_image(f"signature: {{openpgp: '{SIGNATURE}'}}, {claim}")}


def review_with_results(new: Files, *results: SignatureResult) -> Review:
    """Review a change of the fleet with the results of a check of signatures."""
    review = review_files(new)
    found = parse_signature_results(format_document(items=[], files=results).encode(), "results.json")
    return review_commits(review.base, review.head, limits=Limits(), messages=(), command="", signature_results=found)


def make_result(
    key: str | None = KEY, fault: str | None = None, *, image: str = "new-3", sha256: str = SHA
) -> SignatureResult:
    signer = FileSigner(key=key, name="Vendor") if key is not None else None
    return SignatureResult(image=image, sha256=sha256, signer=signer, fault=fault)


def kernel_text(review: Review) -> str:
    ((_, text),) = phrases.list_image_claims(review.provenance.images[0])
    return text


def stream(spec: str, name: str = "stable") -> Files:
    return {f"{name}.yaml" if name != "stable" else "stream.yaml": document("ImageStream", name, spec)}


REQUIRING: Files = {**FLEET, **stream("current: flatcar-1, requireProvenance: signed")}

# Claims


@for_each(
    ("claim", "expected"),
    [
        ("size: 1", "not stated"),
        ("provenance: {digest: firstSeen}", "claims: first seen"),
        ("provenance: {digest: published}", "claims: published"),
        (
            "provenance: {digest: published, url: 'https://vendor.test/SHA256SUMS'}",
            "claims: published (https://vendor.test/SHA256SUMS)",
        ),
        (SIGNED, f"claims: signed by {KEY}, but the image does not have a signature"),
        (f"signature: {{openpgp: '{SIGNATURE}'}}, {SIGNED}", f"claims: signed by {KEY}"),
    ],
)
def test_a_new_image_shows_what_it_claims(claim: str, expected: str) -> None:
    assert kernel_text(review_files({"images/3.yaml": make_image(claim)})) == expected


@for_each(
    ("claim", "result", "expected"),
    [
        (SIGNED, (KEY, None), f"verified: signed by Vendor ({KEY})"),
        (
            SIGNED,
            (OTHER_KEY, None),
            f"verified: signed by Vendor ({OTHER_KEY}); claims: signed by {KEY}",
        ),
        ("size: 1", (KEY, None), f"verified: signed by Vendor ({KEY}); not stated"),
        (
            SIGNED,
            (None, "signed by a key that is not listed as trusted"),
            f"not verified: the file is signed by a key that is not listed as trusted; claims: signed by {KEY}",
        ),
        (SIGNED, (None, None), f"not verified: the file has no signature; claims: signed by {KEY}"),
        ("provenance: {digest: published}", (None, None), "claims: published"),
    ],
)
def test_a_check_is_shown_beside_the_claim(claim: str, result: tuple[str | None, str | None], expected: str) -> None:
    found = make_result(*result)
    assert kernel_text(review_with_results(with_signature(claim), found)) == expected


@for_each(
    ("case", "result"),
    [
        ("another file", make_result(sha256="b" * 64)),
        ("another image", make_result(image="new-4")),
        ("a signer and a fault", make_result(fault="expired")),
    ],
)
def test_a_claim_stays_a_claim_after_a_check_of(case: str, result: SignatureResult) -> None:
    review = review_with_results(with_signature(SIGNED), result)
    assert f"claims: signed by {KEY}" in kernel_text(review)
    assert not kernel_text(review).startswith("verified")
    assert phrases.has_unverified_claims(review.provenance.images[0])


def test_one_good_signature_of_a_file_counts_if_the_image_names_the_file_twice() -> None:
    good = make_result()
    unsigned = make_result(None)
    for results in ((good, unsigned), (unsigned, good)):
        assert (
            kernel_text(review_with_results(with_signature(SIGNED), *results)) == f"verified: signed by Vendor ({KEY})"
        )


@for_each(
    ("content", "fault"),
    [
        (b"", "truncated"),
        (b"{}", "`files`"),
        (b'{"files": [{"image": "a"}]}', "`sha256`"),
        (b'{"files": [{"image": "a", "sha256": 5}]}', "Expected `str`, got `int`"),
        (b'\xff{"files": []}', "malformed"),
        (b'{"items": []}', "`files`"),
    ],
)
def test_a_file_without_results_is_rejected(content: bytes, fault: str) -> None:
    with pytest.raises(UsageError, match=r"^results\.json does not contain signature results: .*json=FILE`$") as at:
        parse_signature_results(content, "results.json")
    assert fault in str(at.value)


def test_only_a_stated_and_unverified_provenance_is_annotated() -> None:
    def annotations(review: Review) -> list[tuple[str, str]]:
        return [(each.path, each.message) for each in as_problems(review) if each.code is Code.UNVERIFIED_PROVENANCE]

    assert annotations(review_files({"images/3.yaml": image("new-3")})) == []
    new = with_signature(SIGNED)
    assert annotations(review_files(new)) == [
        ("images/3.yaml", f"BootImage/new-3: x86_64.kernel: claims: signed by {KEY}")
    ]
    assert annotations(review_with_results(new, make_result())) == []


def test_a_changed_claim_is_shown_with_the_claim_before_and_changes_no_boot() -> None:
    """An edited provenance is neither an edited image nor a new claim to write no disk."""
    old = {
        **FLEET,
        "images/memtest.yaml": make_image("provenance: {digest: firstSeen}", DISKLESS, "memtest-7"),
    }
    new = {"images/memtest.yaml": make_image(SIGNED, DISKLESS, "memtest-7")}
    review = review_files(new, old)
    assert review.outcome is ReviewOutcome.UNCHANGED
    assert kernel_text(review).endswith("before: first seen")
    assert review.changes is not None
    assert (review.changes.images, review.changes.disk_claims) == ((), ())


def test_other_files_of_an_edited_image_are_still_an_edited_image() -> None:
    new = {"images/1.yaml": str(FLEET["images/1.yaml"]).replace(SHA, f"{'b' * 64}, provenance: {{digest: published}}")}
    review = review_files(new)
    assert review.changes is not None
    assert [each.name for each in review.changes.images if each.mutated] == ["flatcar-1"]
    assert review.verdict is not None and "mutatedImages" in review.verdict.holding_guards


def test_a_claim_is_shown_again_if_the_image_no_longer_names_a_signature() -> None:
    lists = f", checksums: {{url: 'https://vendor.test/SUMS', signature: {{openpgp: '{SIGNATURE}'}}}}}}}}"
    unsigned = make_image(SIGNED)
    signed = unsigned.replace("}}}}", "}}" + lists)
    assert "checksums" in signed
    review = review_files({"images/3.yaml": unsigned}, {**FLEET, "images/3.yaml": signed})
    assert kernel_text(review) == f"claims: signed by {KEY}, but the image does not have a signature"


def test_an_edit_of_other_fields_shows_no_claims() -> None:
    new = {"images/1.yaml": image("flatcar-1", "userData: CloudInit, kernelArguments: [quiet]")}
    assert review_files(new).provenance.images == ()


# Rules of streams


def risks(review: Review) -> list[str]:
    return [each.reason for each in phrases.list_provenance_risks(review.provenance)]


@for_each(
    ("case", "new", "old"),
    [
        ("the rule is removed", stream("current: flatcar-1"), REQUIRING),
        ("any", stream("current: flatcar-1, requireProvenance: any"), REQUIRING),
        (
            "an unused stream is removed",
            {"spare.yaml": None},
            {**FLEET, **stream("current: flatcar-2, requireProvenance: signed", "spare")},
        ),
    ],
)
def test_a_stream_that_no_longer_requires_signed_images_is_a_risk_in_each_format(
    case: str, new: Files, old: Files
) -> None:
    review = review_files(new, old)
    name = "spare" if "spare.yaml" in new else "stable"
    line = f"ImageStream/{name} no longer requires signed images: spec.requireProvenance: signed → any"
    assert risks(review) == [line]
    (danger,) = review.find_dangers()
    assert (danger.risk, danger.names) == (Risk.PROVENANCE, (f"ImageStream/{name}",))
    assert review.outcome is ReviewOutcome.FINE  # an instance offers other boots, so it is not "unchanged"
    assert line in " ".join(click.unstyle(format_review_text(review, "")).split())
    assert line in as_markdown(review)
    assert [each["reason"] for each in json.loads(as_json(review))["provenanceRisks"]] == [line]
    (annotation,) = (each for each in as_problems(review) if each.code is Code.DANGEROUS)
    assert line in annotation.message
    assert annotation.path == ("fleet.yaml" if name == "spare" else "stream.yaml")


def test_a_stream_that_newly_requires_signed_images_is_shown_and_is_no_risk() -> None:
    review = review_files(
        stream("current: flatcar-2, requireProvenance: signed"), {**FLEET, **stream("current: flatcar-2")}
    )
    assert review.outcome is ReviewOutcome.FINE
    assert list(review.find_dangers()) == []
    assert "spec.requireProvenance: any → signed" in as_markdown(review)
    assert review.document_only_changes == ()


def test_a_followed_source_changes_no_boot_and_is_shown() -> None:
    review = review_files(stream("current: flatcar-1, follow: {source: flatcar, channel: lts, belowVersion: '5'}"))
    assert review.outcome is ReviewOutcome.UNCHANGED
    assert "spec.follow: (absent) → source: flatcar, channel: lts, belowVersion: 5" in as_markdown(review)


def test_no_format_shows_a_secret_of_a_source_or_of_a_claim() -> None:
    token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"

    def source(argument: str, url: str) -> Files:
        spec = f"architectures: {{x86_64: amd64}}, releases: {{format: JSONList, url: '{url}'}}, "
        spec += f"files: {{kernel: {{url: 'https://vendor.test/k'}}}}, image: {{kernelArguments: [{argument}]}}"
        return {"source.yaml": document("ImageSource", "mirror", spec)}

    claim = f"provenance: {{digest: published, url: 'https://vendor.test/SUMS?token={token}'}}"
    new = {
        **source("api.token=hunter2", f"https://vendor.test/?token={token}"),
        "images/3.yaml": make_image(claim),
    }
    review = review_files(new, {**FLEET, **source("quiet", "https://vendor.test/")})
    shown = (as_json(review), as_markdown(review), format_review_text(review, ""), str(as_problems(review)))
    assert all("HIDDEN" in each for each in shown)
    assert not any(token in each or "hunter2" in each for each in shown)


# Boots without the stream

DIRECT = (
    "BootProfile/{profile} boots BootImage/flatcar-1 without ImageStream/stable, which requires signatures for this "
    "image only while the image is in the stream"
)


def test_a_new_profile_that_names_an_image_of_the_stream_is_a_risk() -> None:
    review = review_files({"profiles/spare.yaml": profile("spare", "flatcar-1")}, REQUIRING)
    assert risks(review) == [DIRECT.format(profile="spare")]


def test_a_new_rule_shows_the_boots_to_which_it_does_not_apply() -> None:
    assert risks(review_files({"stream.yaml": str(REQUIRING["stream.yaml"])})) == [DIRECT.format(profile="db")]


def test_a_boot_that_the_old_commit_had_is_not_shown_again() -> None:
    assert risks(review_files({"images/3.yaml": image("new-3")}, REQUIRING)) == []


def test_an_image_that_comes_into_the_stream_later_is_shown_too() -> None:
    old = {**REQUIRING, "profiles/spare.yaml": profile("spare", "flatcar-2")}
    new = stream("current: flatcar-1, requireProvenance: signed, rollout: {image: flatcar-2, percent: 1}")
    assert risks(review_files(new, old)) == [DIRECT.format(profile="spare").replace("flatcar-1", "flatcar-2")]


def test_a_maintenance_whose_profile_names_an_image_of_the_stream_is_a_risk() -> None:
    new = {"m.yaml": maintenance("m", "27T22:00 28T04:00", "networkBoot: Once", boots="db")}
    assert risks(review_files(new, REQUIRING)) == [
        DIRECT.format(profile="db").replace("BootProfile/db", "Maintenance/m").replace("-1", "-1 by BootProfile/db")
    ]


@for_each(
    ("new", "profile_name"),
    [
        ({"profiles/web.yaml": profile("web", "flatcar-2")}, "web"),
        (
            {
                "profiles/free.yaml": profile("free", "stream: free"),
                "free.yaml": document("ImageStream", "free", "current: flatcar-2"),
                "policies/web.yaml": str(FLEET["policies/web.yaml"]).replace("profile: web", "profile: free"),
            },
            "free",
        ),
    ],
)
def test_servers_that_no_longer_need_signatures_are_a_risk(new: Files, profile_name: str) -> None:
    review = review_files(new, REQUIRING)
    assert risks(review) == [
        f"ams2-web01, ams2-web02, ams2-web03 and 15 more boot BootProfile/{profile_name} without the signatures that "
        "ImageStream/stable requires"
    ]
    assert review.provenance.left[0].place[0] == f"profiles/{profile_name}.yaml"


def test_a_server_that_leaves_the_image_of_the_stream_needs_no_signature_any_more() -> None:
    """A profile that names the image itself needs its signature while a stream requires it."""
    review = review_files({"profiles/db.yaml": profile("db", "bios-2")}, REQUIRING)
    assert risks(review) == [
        "fra1-db01, fra1-db02, fra1-db03 and 1 more boot BootProfile/db without the signatures that ImageStream/stable "
        "requires"
    ]


def test_a_pinned_server_of_the_stream_still_needs_signatures() -> None:
    pinned = server("fra1-web01", "site: fra1, role: web", "provision: 1, pin: {image: flatcar-2, reason: GPU}")
    assert risks(review_files({"servers/fra1-web01.yaml": pinned}, REQUIRING)) == []


def test_servers_that_change_to_another_stream_with_the_rule_are_no_risk() -> None:
    new = {
        "profiles/web.yaml": profile("web", "stream: strict"),
        **stream("current: flatcar-2, requireProvenance: signed", "strict"),
    }
    assert risks(review_files(new, REQUIRING)) == []


def test_without_a_stream_with_the_rule_no_boot_is_a_risk() -> None:
    assert risks(review_files({"profiles/web.yaml": profile("web", "flatcar-2")})) == []
