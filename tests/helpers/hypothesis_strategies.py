"""Hypothesis strategies: documents in any layout that the models permit, and whole fleets that are valid."""

from __future__ import annotations

import json
import random
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from ipaddress import ip_network
from itertools import chain
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin

import yaml
from hypothesis import strategies as st
from hypothesis.vendor.pretty import RepresentationPrinter

from gitboot.fleet.documents import KINDS, ParseCache
from gitboot.fleet.validation import load
from gitboot.jsonio import format_instant
from gitboot.model import image_source, scalars
from gitboot.model.boot_image import Artifact, Artifacts, Checksums, Provenance, Signature
from gitboot.model.boot_policy import Approval, Before, BootProfileSpec, MaintenanceSpec, Window
from gitboot.model.fields import MatchExpression, Scalar, Selector, list_fields
from gitboot.model.fleet import FleetSpec, Provisioning
from gitboot.model.image_source import (
    ChecksumsTemplate,
    ImageSourceSpec,
    ReleaseIndex,
    SignatureTemplate,
    SourceFile,
    SourceFiles,
)
from gitboot.model.server import Bmc, ServerSpec
from gitboot.render.boot_files import render_fleet_files, render_idle_files, render_server_files
from gitboot.render.paths import File
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.plan_at_time import make_plan
from gitboot.resolve.provisioning_record import (
    FETCH_GRACE,
    Record,
    Run,
)
from gitboot.resolve.server_decision import Decision, Decisions, list_idle_macs
from gitboot.resolve.server_plan import BootPlan
from tests.helpers.fleets import SHA, at, make_mac, make_uuid, snapshot

# Documents by Hypothesis: any that the models can express, made from the models themselves, in any layout.
#
# A document is a mapping in the YAML's own spelling. Its scalars are in the form that gitboot normalises them to, so
# that what is loaded from it can be compared with it.

Document: TypeAlias = dict[str, Any]
Strategy: TypeAlias = st.SearchStrategy[Any]

# Text that YAML 1.1 or 1.2 would read as another type, or cannot write without quotes.
AWKWARD: Final = (
    *("", " ", "null", "~", "true", "no", "0755", "1_000", "1234E56", "12:30", "52:54:00:12:34:56", "2027-01-31"),
    *(
        "(a",
        "[key]",
        "a: b",
        "- a",
        "#a",
        "a #b",
        "&a",
        "*a",
        "!a",
        "%a",
        "@a",
        "<<",
        "---",
        "...",
        "{{ a }}",
        "[a",
        "\\",
        "'",
        '"',
    ),
    *("a\nb", "\n", "\t", "\x00", "\x1b[1m", "é", "😀", "\u2028", "\ufeff", "word " * 30),
)
_TEXTS: Final = st.sampled_from(AWKWARD) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def _match(pattern: str) -> Strategy:
    return st.from_regex(pattern, fullmatch=True)


_INTEGERS: Final = st.integers(0, 3) | st.integers(0, 10**18 - 1)
_NAMES: Final = _match(r"[a-z0-9]([-a-z0-9]{0,6}[a-z0-9])?(\.[a-z0-9]{1,4})?")
_LABEL_VALUES: Final = _match(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,6}[A-Za-z0-9])?")
_URLS: Final = _match(
    r"https?://(boot|10\.1\.2\.3|\[fd00::1\])(:[1-9][0-9]{0,3})?(/([a-zA-Z0-9+.,=~-]|%[2-7][0-9A-F]){1,6}){0,2}"
)
_URL_TEMPLATES: Final = _match(r"https://host\.test(/({channel}|{arch}|{version}|[a-z]{1,6})){1,3}")
_PATHS: Final = _match(r"[a-z0-9_][a-z0-9_. -]{0,6}(/[a-z0-9_][a-z0-9_. é-]{0,6})?")
_ADDRESSES: Final = st.ip_addresses().filter(lambda address: not getattr(address, "scope_id", None))
_INTERFACES: Final = st.builds("{}/{}".format, _ADDRESSES, st.integers(0, 32))


def _mac(digits: bytes) -> str:
    return bytes([digits[0] & 0xFE, *digits[1:-1], digits[-1] | 1]).hex("-")


# By parser, in normal form.
_SCALARS: Final[Mapping[Callable[..., Any], Strategy]] = {
    scalars.text: _TEXTS,
    scalars.parse_nonempty: _TEXTS.filter(bool),
    scalars.parse_name: _NAMES,
    scalars.parse_integer: _INTEGERS,
    scalars.parse_signed: _INTEGERS | _INTEGERS.map(lambda number: -number),
    scalars.parse_boolean: st.booleans(),
    scalars.parse_mac: st.binary(min_size=6, max_size=6).map(_mac),
    scalars.parse_uuid: st.uuids(version=4).map(str),
    scalars.parse_ledger: st.uuids(version=4).map(str),
    scalars.parse_interface_address: _ADDRESSES.map(str) | _INTERFACES,
    scalars.parse_network: _INTERFACES.map(lambda interface: str(ip_network(interface, strict=False))),
    scalars.parse_digest: st.binary(min_size=32, max_size=32).map(bytes.hex),
    scalars.parse_fingerprint: st.binary(min_size=32, max_size=32).map(bytes.hex),
    scalars.parse_artifact_url: _URLS
    | _match(r"assets:[a-z0-9]{1,6}(/[A-Za-z0-9_%+~-]{1,6}){0,2}")
    | _match(r"oci://registry\.test(/[a-z]{1,4}){1,2}@sha256:[0-9a-f]{64}"),
    scalars.parse_base_url: _URLS,
    scalars.parse_hook_url: _URLS,
    scalars.parse_bmc_address: _URLS | _match(r"ipmi://[a-z]{1,6}(\.[a-z]{1,6})?(:6[0-9]{3})?"),
    scalars.parse_instant: st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)).map(  # noqa: DTZ001
        lambda instant: format_instant(instant.replace(microsecond=0))
    ),
    scalars.parse_count_or_percent: st.integers(1, 999).map(str) | st.integers(1, 100).map("{}%".format),
    scalars.parse_percent: st.integers(0, 100),
    scalars.parse_positive: st.integers(1, 10**6),
    scalars.parse_file_path: _PATHS,
    scalars.parse_secret_path: _PATHS.map("{}.age".format),
    scalars.parse_kernel_argument: _match(r"-?[a-z.]{1,6}(=[!-~é]([ -~é]{0,6}[!-~])?)?"),
    scalars.parse_variable_name: _match(r"[A-Za-z_][A-Za-z0-9_]{0,6}"),
    scalars.parse_variable: _TEXTS | st.booleans(),
    scalars.parse_label_key: _LABEL_VALUES | st.tuples(_NAMES, _LABEL_VALUES).map("/".join),
    scalars.parse_label_value: st.just("") | _LABEL_VALUES,
    scalars.parse_duration_text: _match("[1-9][0-9]{0,2}[wdhms]"),
    image_source.parse_url_template: _URL_TEMPLATES,
    image_source.parse_index_url_template: _match(r"https://host\.test(/({channel}|{arch}|[a-z]{1,6})){1,3}"),
    image_source.parse_base_url_template: _URL_TEMPLATES,
    image_source.parse_derived_url_template: st.just("{url}.sig") | _URL_TEMPLATES,
    image_source.parse_name_template: _match(r"[a-z./]{1,6}({version}|{arch}|{channel})?[a-z.]{0,6}"),
    image_source.parse_match_template: _match(r"[a-z./]{0,6}\{version\}[a-z.-]{0,6}({arch}|{channel})?"),
    image_source.parse_key_fingerprint: st.binary(min_size=20, max_size=20).map(lambda key: key.hex().upper()),
    image_source.parse_argument_template: _match(r"[a-z.]{1,6}(=({version}|[a-z]{1,6}|\{\{ image.name \}\}))?"),
    scalars.parse_local_disk: st.sampled_from(["Exit", "Sanboot", "NotFound", "/EFI/debian/shimx64.efi"])
    | _match(r"(/EFI)(/[A-Za-z0-9_-]{1,6}){1,2}\.efi"),
}


def documents() -> st.SearchStrategy[Document]:
    return st.one_of([_struct(kind) for kind in KINDS.values()])


def _draw_type(hint: Any, at_least: int = 0) -> Strategy:
    """Any value of a type, with ``at_least`` so many items."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        found = _scalar(arguments[1:])
        return _draw_type(arguments[0], at_least) if found is None else found
    if origin in (Union, types.UnionType):
        return st.one_of([_draw_type(each) for each in arguments if each is not type(None)])
    if origin is Literal:
        return st.sampled_from([str(each) for each in arguments])
    if origin is tuple:
        return st.lists(_draw_type(arguments[0]), min_size=at_least, max_size=2)
    if origin is dict:
        return st.dictionaries(_draw_type(arguments[0]), _draw_type(arguments[1]), min_size=at_least, max_size=2)
    if issubclass(hint, Enum):
        return st.sampled_from([str(each) for each in hint])
    return _struct(hint)


def fields(hint: Any, path: str = "") -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every field below a type that is a scalar with a parser of its own: ("spec.sites[].name", parse_name)."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        parsers = [each.parse for each in arguments[1:] if isinstance(each, Scalar)]
        yield from ((path, parser) for parser in parsers)
        yield from () if parsers else fields(arguments[0], path)
    elif origin is tuple:
        yield from fields(arguments[0], f"{path}[]")
    elif origin is dict:
        yield from fields(arguments[1], f"{path}{{}}")
    elif origin in (Union, types.UnionType):
        for each in arguments:
            yield from fields(each, path)
    elif hasattr(hint, "__dataclass_fields__"):
        for field in list_fields(hint):
            yield from fields(field.type, f"{path}.{field.alias}".removeprefix("."))


def _scalar(metadata: tuple[Any, ...]) -> Strategy | None:
    for each in metadata:
        if isinstance(each, Scalar) and each.parse in _SCALARS:
            return _SCALARS[each.parse]
        if isinstance(each, Scalar) and "enum" in each.schema:
            return st.sampled_from(each.schema["enum"])
    return None


def _struct(struct: Any) -> Strategy:
    """Any mapping of a structure's fields; those that are optional are there or not."""
    declared = [(field, _draw_type(field.type, field.min_length)) for field in list_fields(struct)]
    strategy = st.fixed_dictionaries(
        {field.alias: each for field, each in declared if field.is_required},
        optional={field.alias: each for field, each in declared if not field.is_required},
    )
    return strategy.map(_FITTING[struct]) if struct in _FITTING else strategy


# Dependencies between fields: each function turns a mapping into one that its structure accepts.


def _bmc(drawn: Document) -> Document:
    if drawn["address"].startswith("ipmi:"):  # without paths and certificates
        return {name: value for name, value in drawn.items() if name not in ("system", "tls")}
    return drawn | ({"system": f"/{drawn['system']}"} if "system" in drawn else {})


def _fleet(drawn: Document) -> Document:
    if "sites" in drawn:
        drawn = drawn | {"sites": list({site["name"]: site for site in drawn["sites"]}.values())}
    if any("ledger" in site for site in drawn.get("sites", ())):  # each acts for its own site, and none for all
        for_all = drawn.get("provisioning", {})
        return drawn | {"provisioning": {name: value for name, value in for_all.items() if name != "ledger"}}
    return drawn


def _server(drawn: Document) -> Document:
    first, *others = drawn["interfaces"]
    if "uuid" not in drawn:  # which these need
        drawn = {
            name: value for name, value in drawn.items() if name not in ("provision", "replaces", "bmc", "secrets")
        }
    return drawn | {"interfaces": [first | {"boot": True}, *others]}


def _provisioning(drawn: Document) -> Document:
    return drawn | ({"evidence": "Reported"} if "attempts" in drawn else {})


def _expression(drawn: Document) -> Document:
    if drawn["operator"] in ("In", "NotIn"):
        return drawn | {"values": drawn.get("values") or ["web"]}
    return {key: value for key, value in drawn.items() if key != "values"}


def _selector(drawn: Document) -> Document:
    by_label = {key: value for key, value in drawn.items() if value and key != "servers"}
    return by_label or {"servers": drawn.get("servers") or ["web01"]}


def _signature(drawn: Document) -> Document:
    return dict([*drawn.items(), ("minisign", "assets:minisig")][:1])


def _checksums(drawn: Document) -> Document:
    ways = [(name, value) for name, value in drawn.items() if name in ("signature", "listedIn")]
    return {"url": drawn["url"]} | dict(ways[:1] or [("clearSigned", True)])


def _provenance(drawn: Document) -> Document:
    key = {"key": drawn.get("key", "F88CFEDE")} if drawn["digest"] == "signed" else {}
    return {name: value for name, value in drawn.items() if name != "key"} | key


def _artifact(drawn: Document) -> Document:
    digest = str(drawn["url"]).partition("@sha256:")[2] if str(drawn["url"]).startswith("oci:") else ""
    return drawn | {"sha256": digest or drawn["sha256"]}


def _artifacts(drawn: Document) -> Document:
    kept = drawn
    if "kernel" not in drawn:
        kept = {key: value for key, value in drawn.items() if key in ("uki", "iso")}
        kept = kept or {"uki": {"url": "assets:uki", "sha256": "a" * 64}}
    return {name: _without_loader_signature(value) for name, value in kept.items()}


def _without_loader_signature(value: Any) -> Any:
    """Return a file, or several, without a signature for iPXE: all files of an image have one, or none."""
    if isinstance(value, list):
        return [_without_loader_signature(each) for each in value]
    if isinstance(value, dict):
        return {key: each for key, each in value.items() if key != "loaderSignature"}
    return value


def _signature_template(drawn: Document) -> Document:
    return dict([*drawn.items(), ("minisign", "{url}.minisig")][:1])


def _release_index(drawn: Document) -> Document:
    kept = {key: value for key, value in drawn.items() if key != "clearSigned" or "signature" not in drawn}
    if drawn["format"] == "OCITags":
        kept = {key: value for key, value in drawn.items() if key not in ("signature", "clearSigned")}
        kept["url"] = "oci://registry.test/image"
    return kept | {"match": drawn.get("match", "v{version}")}


def _checksums_template(drawn: Document) -> Document:
    ways = [(name, value) for name, value in drawn.items() if name != "url"]
    return {"url": drawn["url"]} | dict(ways[:1])


def _source_file(drawn: Document) -> Document:
    kept = {name: value for name, value in drawn.items() if name not in ("name", "url", "signed")}
    return kept | {"url": drawn.get("url", "https://host.test/{version}/file")}


def _source_files(drawn: Document) -> Document:
    if "kernel" in drawn:
        return drawn
    return {"iso": drawn.get("iso", {"url": "https://host.test/{version}.iso"})}


def _image_source(drawn: Document) -> Document:
    fitting = drawn | {"keys": drawn.get("keys") or ["A" * 40], "channels": drawn.get("channels") or ["stable"]}
    if drawn["releases"]["format"] == "OCITags":
        fitting["files"] = {"kernel": {"name": "kernel"}}
    dropped = {"baseURLs"} if _has_signature(fitting) else {"baseURLs", "keys"}  # keys without a signature are an error
    return {name: value for name, value in fitting.items() if name not in dropped}


def _has_signature(source: Document) -> bool:
    releases, checksums = source["releases"], source.get("checksums", {})
    return (
        releases["format"] == "CoreOSStream"
        or any(releases.get(key) for key in ("clearSigned", "signature"))
        or any(checksums.get(key) for key in ("clearSigned", "signature", "listedIn"))
        or any("signature" in file for file in chain(source["files"].values(), source["files"].get("initrds", ())))
    )


def _profile(drawn: Document) -> Document:
    kept = {key: value for key, value in drawn.items() if key not in ("image", "stream", "httpBoot")}
    if drawn["method"] != "Disk":
        kept |= {"stream": drawn["stream"]} if "stream" in drawn else {"image": drawn.get("image", "flatcar")}
    return kept | ({"httpBoot": drawn.get("httpBoot", "uki")} if drawn["method"] == "UefiHttp" else {})


def _window(drawn: Document) -> Document:
    ends = sorted(set(drawn.values()))
    return dict(zip(("start", "end"), ends, strict=True)) if len(ends) == 2 else drawn if len(drawn) == 1 else {}


def _approval(drawn: Document) -> Document:
    return dict([*drawn.items(), ("file", "approvals.txt")][:1])


def _before(drawn: Document) -> Document:
    return drawn or {"approval": {"file": "approvals.txt"}}


def _maintenance(drawn: Document) -> Document:
    if "before" not in drawn:
        return drawn
    window = {"end": "2027-01-31T00:00:00Z"} if "end" not in drawn.get("window", {}) else drawn["window"]
    return drawn | {"window": window, "power": "Restart"}


_FITTING: Final[Mapping[type, Callable[[Document], Document]]] = {
    Signature: _signature,
    Approval: _approval,
    Artifact: _artifact,
    Artifacts: _artifacts,
    Before: _before,
    Bmc: _bmc,
    Checksums: _checksums,
    ChecksumsTemplate: _checksums_template,
    ImageSourceSpec: _image_source,
    Provenance: _provenance,
    ReleaseIndex: _release_index,
    SignatureTemplate: _signature_template,
    SourceFile: _source_file,
    SourceFiles: _source_files,
    BootProfileSpec: _profile,
    FleetSpec: _fleet,
    MaintenanceSpec: _maintenance,
    MatchExpression: _expression,
    Provisioning: _provisioning,
    Selector: _selector,
    ServerSpec: _server,
    Window: _window,
}


# Back to YAML


LAYOUTS: Final = st.fixed_dictionaries(
    {
        "flow": st.sampled_from([True, False, None]),
        "quotes": st.sampled_from([None, '"', "'"]),
        "width": st.integers(40, 120),
        "indent": st.integers(2, 6),
        "allow_unicode": st.booleans(),
        "line_break": st.sampled_from(["\n", "\r\n"]),
    }
)


def format_yaml(document: Document, *, flow: bool | None = False, quotes: str | None = None, **layout: Any) -> str:
    """Return the text of a document: plain scalars wherever gitboot reads the same value.

    ``flow`` is for all of it, for none, or (None) for collections of scalars only.
    """
    events = (
        yaml.StreamStartEvent(),
        yaml.DocumentStartEvent(explicit=False),
        *_events(document, flow, quotes),
        yaml.DocumentEndEvent(explicit=False),
        yaml.StreamEndEvent(),
    )
    return str(yaml.emit(events, Dumper=yaml.CSafeDumper, **layout))


def _events(value: Any, flow: bool | None, quotes: str | None) -> Iterator[yaml.Event]:
    match value:
        case dict() | list():
            inner = value.values() if isinstance(value, dict) else value
            in_flow = not any(isinstance(each, dict | list) for each in inner) if flow is None else flow
            if isinstance(value, list):
                yield yaml.SequenceStartEvent(None, None, implicit=True, flow_style=in_flow)
                for item in value:
                    yield from _events(item, flow, quotes)
                yield yaml.SequenceEndEvent()
            else:
                yield yaml.MappingStartEvent(None, None, implicit=True, flow_style=in_flow)
                for key, item in value.items():
                    yield from _events(key, flow, quotes)
                    yield from _events(item, flow, quotes)
                yield yaml.MappingEndEvent()
        case str():
            style = quotes or ("'" if value in _NEVER_PLAIN else None)
            yield yaml.ScalarEvent(None, None, (True, True), value, style=style)
        case _:
            text = {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))
            yield yaml.ScalarEvent(None, None, (True, True), text)


_NEVER_PLAIN: Final = frozenset({"", "null", "~", "true", "false", "<<"})


# Whole fleets by Hypothesis: valid by construction, with records and an instant, and what gitboot makes of them.
#
# Ties, missing references and boots that cannot work are avoided while a fleet is drawn, so that nothing is discarded:
# priorities are unique where selections could overlap, every image has every artifact, and a boot without an entry
# never has ``override: Continuous``.

Write: TypeAlias = Callable[[Document], str]

STREAM: Final = "flatcar"
IMAGES: Final = ("flatcar-1", "flatcar-2", "flatcar-3", "flatcar-10")
TOOLS: Final = ("memtest-7", "bios-2")  # images that write no disk
SPARE: Final = "spare-1"  # no document names it
PROFILES: Final = ("local", "node", "plain", "rescue", "script", "worker")

# All that a template can look at, each mapping in the order in which it comes.
USER_DATA: Final = """\
{"ignition": {"version": "3.4.0"}, "of": "{{ server.name }} {{ image.name }} {{ phase }} {{ urls.base }}",
 "labels": "{% for key, value in server.labels.items() %}{{ key }}={{ value }} {% endfor %}",
 "pool": "{% for key in node_labels %}{{ key }} {% endfor %}{{ node_taints | length }}",
 "vars": "{% for key, value in vars.items() %}{{ key }}={{ value }} {% endfor %}"}
"""
ENTRY: Final = "#!ipxe\necho {{ server.name }} {{ image.name }}\nchain {{ urls.base }}/own.efi || exit\n"
FILES: Final = {"userdata/node.ign": USER_DATA, "templates/own.ipxe": ENTRY}

START: Final = at("20T00:00")  # of the days in which everything happens
_HOURS: Final = 60
_parsed: ParseCache = {}  # documents that many fleets have in common are parsed once


def document(kind: str, name: str, spec: Document, labels: Mapping[str, str] | None = None) -> Document:
    metadata: Document = {"name": name}
    if labels:
        metadata["labels"] = dict(labels)
    return {"apiVersion": "gitboot.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def get_name(document: Document) -> str:
    return str(document["metadata"]["name"])


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratedFleet:
    documents: tuple[Document, ...]
    records: Mapping[str, Record | None]  # by server; None: unknown
    at: datetime

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        """Print the drawn example for Hypothesis without the images, which are always the same."""
        printer.text(f"at {self.at}, records {dict(self.records)}\n")
        printer.text("".join(format_json(document) for document in self.documents if document["kind"] != "BootImage"))

    def of(self, kind: str) -> tuple[Document, ...]:
        return tuple(document for document in self.documents if document["kind"] == kind)

    def names(self, kind: str) -> tuple[str, ...]:
        return tuple(map(get_name, self.of(kind)))

    def replace_documents(self, *changed: Document) -> GeneratedFleet:
        """The same fleet with these documents, instead of those with their names or besides."""
        keys = {(document["kind"], get_name(document)) for document in changed}
        kept = (document for document in self.documents if (document["kind"], get_name(document)) not in keys)
        return replace(self, documents=(*kept, *changed))

    @property
    def bios(self) -> bool:
        """Return whether servers may have BIOS; then no profile needs UEFI."""
        return all(profile["spec"]["method"] in ("Pxe", "Disk") for profile in self.of("BootProfile"))

    def instants(self, record: Record | None) -> tuple[datetime, ...]:
        """Every instant at which a server's plan may change, those right before and after, and `at`."""
        found = [self.at, START - timedelta(days=1), START + timedelta(days=30)]
        for maintenance in self.of("Maintenance"):
            found += map(datetime.fromisoformat, maintenance["spec"].get("window", {}).values())
        found += _list_times(record) if record else ()
        moment = timedelta(microseconds=1)
        return tuple(sorted({instant + offset for instant in found for offset in (-moment, 0 * moment, moment)}))


def _list_times(record: Record) -> Iterator[datetime]:
    for instant in (record.provisioned_at, record.grace_until, record.consumed_at):
        if instant is not None:
            yield instant
            yield instant + timedelta(minutes=30)
            yield instant + timedelta(hours=2)
    for made in record.runs.values():
        yield made.at
        yield made.at + timedelta(minutes=1)


# The fleet in gitboot


def format_json(document: Document) -> str:
    return json.dumps(document) + "\n"


def format_blocks(document: Document) -> str:
    return yaml.dump(document, Dumper=_NoAliases, sort_keys=False)


class _NoAliases(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def shuffle_keys(value: Any, order: random.Random) -> Any:
    """The same value with the keys of all its mappings in another order; lists keep theirs."""
    if isinstance(value, dict):
        keys = list(value)
        order.shuffle(keys)
        return {key: shuffle_keys(value[key], order) for key in keys}
    return [shuffle_keys(item, order) for item in value] if isinstance(value, list) else value


def decided(documents: Iterable[Document], write: Write = format_json) -> Decisions:
    return decide_texts(*map(write, documents))


def decide_texts(*texts: str, files: Mapping[str, str] | None = None) -> Decisions:
    """The same of files' texts; ``files`` are those with a path of their own."""
    return decide(load(snapshot(*texts, files=FILES | dict(files or {})), _parsed))


def list_digests(decisions: Decisions) -> dict[str, str]:
    return {name: decision.digest for name, decision in decisions.servers.items()}


def make_plans(
    decisions: Decisions, records: Mapping[str, Record | None], instant: datetime
) -> dict[str, BootPlan | None]:
    return {name: make_plan(decision, instant, records.get(name)) for name, decision in decisions.servers.items()}


def installed_record(decision: Decision, instant: datetime) -> Record:
    """Return the record of a server whose wanted key was provisioned at a time, by a fetch."""
    policy = decision.policy
    return Record(
        provision=policy.provision if policy else 0,
        image=policy.boot.image if policy and policy.boot else None,
        provisioned_at=instant,
        grace_until=instant + FETCH_GRACE,
    )


def tree(decisions: Decisions, records: Mapping[str, Record | None], instant: datetime) -> dict[str, File]:
    files = render_fleet_files(decisions)
    for name, planned in make_plans(decisions, records, instant).items():
        files |= render_server_files(decisions, decisions.servers[name], planned)
        files |= render_idle_files(decisions.outputs, decisions.servers[name], list_idle_macs(decisions.networks[name]))
    return files


# Selection, computed without gitboot


def is_selected(select: Any, server: Document) -> bool:
    if isinstance(select, str):
        return select == "All"
    if "servers" in select:
        return get_name(server) in select["servers"]
    labels = server["metadata"]["labels"]
    matching = all(labels[key] == value for key, value in select.get("matchLabels", {}).items())
    return matching and all(labels[each["key"]] in each["values"] for each in select.get("matchExpressions", ()))


# Strategies

_LABELS: Final = {"role": ("web", "db"), "ring": ("canary", "stable"), "site": ("ams2", "fra1")}
_ARGUMENTS: Final = (
    "console={{ vars.console | default('ttyS0') }},115200",
    "console=tty0",
    "BOOTIF={{ boot_nic.bootif }}",
    "quiet",
    "-quiet",
    "ip=dhcp",
)
_OF_SERVERS: Final = ("site={{ server.labels.site }}", "note={{ server.name }} in two words")


@cache
def _draw_some(*values: str, most: int = 3) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), max_size=most, unique=True) if values else st.just([])


def _optional_fields(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Document]:
    return st.fixed_dictionaries({}, optional=fields)


_ONE_LABEL: Final = st.sampled_from([{key: value} for key, values in _LABELS.items() for value in values])
_ALL_LABELS: Final = st.fixed_dictionaries({key: st.sampled_from(values) for key, values in _LABELS.items()})
_VARS: Final = _optional_fields(
    console=st.sampled_from(["ttyS0", "ttyS1"]), debug=st.booleans(), depth=st.sampled_from(["1", "2"])
)


@cache
def _selects(servers: tuple[str, ...]) -> st.SearchStrategy[Any]:
    expression = {"key": "role", "operator": "In", "values": ["web"]}
    by_name = st.lists(st.sampled_from(servers), min_size=1, max_size=2, unique=True)
    return st.one_of(
        st.sampled_from(["All", "None", {"matchExpressions": [expression]}]),
        _ONE_LABEL.map(lambda labels: {"matchLabels": labels}),
        by_name.map(lambda names: {"servers": names}),
    )


_IMAGES: Final = st.sampled_from(IMAGES)
_INSTANTS: Final = st.integers(0, _HOURS * 60).map(lambda minutes: START + timedelta(minutes=minutes))
_PINS: Final = _IMAGES.map(lambda image: {"image": image, "reason": "pinned"})
_FIRMWARES: Final = st.sampled_from(["UEFI", "BIOS"])
_LIFECYCLES: Final = st.sampled_from(["Active"] * 6 + ["Parked", "Retired"])
_ARCHITECTURES: Final = st.sampled_from(["x86_64", "aarch64"])
_OWN_ARGUMENTS: Final = _draw_some(*_ARGUMENTS, *_OF_SERVERS, most=2)


@st.composite
def server_documents(draw: st.DrawFn, name: str, *, policies: tuple[str, ...], bios: bool) -> Document:
    """Any server document of this name that a fleet with these policies takes."""
    spec = {
        "uuid": make_uuid(f"{name}, with a new motherboard" if draw(st.booleans()) else name),
        "architecture": draw(_ARCHITECTURES),
        "firmware": draw(_FIRMWARES) if bios else "UEFI",
        "interfaces": [{"mac": make_mac(name)}, {"mac": make_mac(f"{name}, second")}][: draw(st.integers(1, 2))],
        "lifecycle": draw(_LIFECYCLES),
        "provision": draw(st.integers(0, 3)),
        "kernelArguments": draw(_OWN_ARGUMENTS),
        "vars": draw(_VARS),
    }
    serials = st.sampled_from([f"4J8VM72-{name}", f"{name} SERIAL"])
    seldom = draw(st.just({}) | _optional_fields(pin=_PINS, policy=st.sampled_from(policies), serial=serials))
    return document("Server", name, spec | seldom, draw(_ALL_LABELS))


def _image(name: str, *, writes_disk: bool) -> Document:
    def artifact(path: str) -> Document:
        return {"url": f"assets:{name}/{path}", "sha256": SHA}

    files = {path: artifact(path) for path in ("kernel", "uki", "iso", "loader")}
    spec = {
        "version": name.rpartition("-")[2],
        "userData": "Ignition/3.4",
        "configFrom": "SystemUUID",  # so that a direct boot takes user data
        "writesDisk": writes_disk,
        "kernelArguments": ["flatcar.first_boot=1", "quiet"],
        "architectures": {each: files | {"initrds": [artifact("initrd")]} for each in ("x86_64", "aarch64")},
    }
    return document("BootImage", name, spec)


_ALL_IMAGES: Final = tuple(_image(name, writes_disk=name not in TOOLS) for name in (*IMAGES, *TOOLS, SPARE))


@cache
def _streams(servers: tuple[str, ...]) -> st.SearchStrategy[Document]:
    select = _selects(servers)
    rollout = st.fixed_dictionaries({"image": _IMAGES}, optional={"percent": st.integers(0, 100), "selector": select})
    hold = st.fixed_dictionaries({"select": select, "image": _IMAGES, "reason": st.just("held")})
    skew = st.fixed_dictionaries({"mode": st.sampled_from(["Warn", "None"]), "minimumVersion": st.just("2")})
    rest = {"rollout": rollout, "holds": st.lists(hold, min_size=1, max_size=2), "skew": skew}
    spec = st.fixed_dictionaries({"current": _IMAGES}, optional=rest)
    return spec.map(lambda drawn: document("ImageStream", STREAM, drawn))


_PROFILE_NAMES: Final = st.sampled_from([*PROFILES, "node", "worker"])
_PROFILE_FIELDS: Final = _optional_fields(
    kernelArguments=_draw_some(*_ARGUMENTS), vars=_VARS
)  # machines without a document, too


@st.composite
def _profiles(draw: st.DrawFn) -> list[Document]:
    bios = draw(st.booleans())
    user_data = {"format": "Ignition/3.4", "template": "userdata/node.ign"}
    follows = {"stream": STREAM}
    pxe: Document = {"method": "Pxe"}
    loader = pxe if bios else {"method": "UefiHttp", "httpBoot": "loader"}
    direct = pxe if bios else {"method": "UefiHttp", "httpBoot": draw(st.sampled_from(["uki", "iso"]))}
    own = {
        "local": {"method": "Disk"},
        "node": loader | follows | {"userData": user_data},
        "plain": pxe | {"image": draw(_IMAGES)},
        "rescue": pxe | {"image": draw(st.sampled_from(TOOLS))},
        "script": pxe | follows | {"templates": {"ipxe": "templates/own.ipxe"}},
        "worker": direct | follows | {"userData": user_data},
    }
    return [document("BootProfile", name, spec | draw(_PROFILE_FIELDS)) for name, spec in own.items()]


def _is_direct(profile: Document) -> bool:
    return profile["spec"].get("httpBoot") in ("uki", "iso")


@st.composite
def _policies(draw: st.DrawFn, servers: tuple[str, ...], profiles: list[Document], *, required: bool) -> list[Document]:
    """One to four policies of which no two that could tie have one priority; the first may have to select all."""
    direct = {get_name(profile): _is_direct(profile) for profile in profiles}
    count = draw(st.integers(1, 4))
    priorities = draw(st.permutations(range(-1, count)))
    made: list[Document] = []
    effective: dict[str, Document] = {}  # by policy, its own and its inherited fields
    childless: list[str] = []
    for number in range(count):
        name, parent = f"pool{number}", draw(st.sampled_from([None, *childless]))
        everyone = required and number == 0
        select = "All" if everyone else draw(_selects(servers))
        spec: Document = {"select": select, "priority": priorities[number]}
        if parent is not None:
            spec["inherits"] = parent
            childless.remove(parent)  # an only child may have its parent's priority
            if draw(st.booleans()):
                del spec["priority"]
        spec |= draw(_INHERITED if parent else _REQUIRED) | draw(_POOL_FIELDS)
        whole = effective.get(parent or "", {}) | spec
        if direct[whole["profile"]] and whole.get("override") == "Continuous":
            spec["override"] = "Once"
        effective[name] = whole | spec
        made.append(document("BootPolicy", name, spec))
        childless.append(name)
    return made


_BOOTS: Final = {
    "profile": _PROFILE_NAMES,
    "networkBoot": st.sampled_from(["Once", "Once", "OnImageChange", "OnImageChange", "Always", "Never"]),
}
_REQUIRED: Final = st.fixed_dictionaries(_BOOTS | {"reinstall": st.just("EveryBoot")})
_INHERITED: Final = _optional_fields(**_BOOTS)
_POOL_FIELDS: Final = _optional_fields(
    override=st.sampled_from(["Once", "Continuous", "None"]),
    diskBoot=st.just("Hdd"),
    kernelArguments=_OWN_ARGUMENTS,
    nodeLabels=st.dictionaries(st.sampled_from(["a", "b", "example.net/pool"]), st.sampled_from(["x", "y"])),
    nodeTaints=st.just([{"key": "pool", "value": "a", "effect": "NoSchedule"}]),
    vars=_VARS,
)


@st.composite
def _windows(draw: st.DrawFn) -> Document:
    start, length = draw(st.integers(0, _HOURS)), draw(st.integers(1, _HOURS))
    ends = {"start": start, "end": start + length}
    given = draw(st.sampled_from([("start", "end"), ("start",), ("end",)]))
    return {key: format_instant(START + timedelta(hours=ends[key])) for key in given}


_MAINTENANCE_FIELDS: Final = _optional_fields(
    window=_windows(),
    networkBoot=st.sampled_from(["Once", "Once", "Always"]),
    override=st.sampled_from(["Once", "None", "Continuous"]),
    run=st.integers(1, 2),
)


@st.composite
def _maintenances(draw: st.DrawFn, servers: tuple[str, ...], profiles: list[Document]) -> list[Document]:
    """Draw none to three maintenances; if two with one priority overlap, the later one gets a higher priority."""
    direct = {get_name(profile): _is_direct(profile) for profile in profiles}
    made: list[Document] = []
    for number in range(draw(st.integers(0, 3))):
        boots = draw(_PROFILE_NAMES)
        spec = {"select": draw(_selects(servers)), "profile": boots, "priority": draw(st.integers(0, 1))}
        spec |= draw(_MAINTENANCE_FIELDS)
        if boots not in ("local", "rescue"):  # it writes disks
            spec["reinstall"] = "EveryBoot"
            spec["window"] = {"end": format_instant(START + timedelta(hours=3 * _HOURS))} | spec.get("window", {})
        if direct[boots] and spec.get("override") == "Continuous":
            spec["override"] = "Once"
        if any(spec["priority"] == other["spec"]["priority"] and overlaps(spec, other["spec"]) for other in made):
            spec["priority"] = max(other["spec"]["priority"] for other in made) + 1
        made.append(document("Maintenance", f"maintenance{number}", spec))
    return made


def bounds(spec: Document) -> tuple[datetime, datetime]:
    """Return the window of a maintenance as [start, end), with an unreachable end if it is open."""
    window = spec.get("window", {})
    start, end = window.get("start", "2000-01-01T00:00:00Z"), window.get("end", "2100-01-01T00:00:00Z")
    return datetime.fromisoformat(start), datetime.fromisoformat(end)


def overlaps(one: Document, other: Document) -> bool:
    (one_start, one_end), (other_start, other_end) = bounds(one), bounds(other)
    return one_start < other_end and other_start < one_end


@st.composite
def _records(draw: st.DrawFn, maintenances: list[Document]) -> Record | None:
    """Draw a possible record of a server: none, or one that the ledger could reach."""
    if draw(st.integers(0, 5)) == 5:
        return None
    runs = {}
    for maintenance in maintenances:
        if (run := draw(st.integers(0, 2))) > 0:
            opened, _ = bounds(maintenance["spec"])
            made_at = max(opened, START) + timedelta(minutes=draw(st.integers(0, 600)))
            ends = [None, opened, opened + timedelta(hours=draw(st.integers(1, 60)))]  # an earlier window's, too
            runs[get_name(maintenance)] = Run(run, made_at, draw(st.sampled_from(ends)))
    record = Record(runs=runs)
    if draw(st.booleans()):
        provisioned_at = draw(_INSTANTS)
        record = replace(
            record,
            provision=draw(st.integers(0, 3)),
            image=draw(_IMAGES),
            provisioned_at=provisioned_at,
            grace_until=provisioned_at + timedelta(minutes=1) if draw(st.booleans()) else None,
        )
    if draw(st.integers(0, 3)) == 0:
        after = timedelta(minutes=draw(st.integers(1, 300)))
        record = replace(record, consumed_at=(record.provisioned_at or draw(_INSTANTS)) + after)
    return record


_FRA1: Final = {"name": "fra1", "select": {"matchLabels": {"site": "fra1"}}, "baseURL": "http://fra1.test"}
_GENERAL: Final = _optional_fields(
    sites=st.just([_FRA1]),
    unknownServers=st.sampled_from(["LocalDisk", "NotFound", {"profile": "rescue"}]),
    serving=st.just({"restrict": True}),
)


@st.composite
def fleets(draw: st.DrawFn) -> GeneratedFleet:
    """A whole small fleet: one to six servers, and all seven kinds."""
    servers = tuple(f"web{number:02}" for number in range(draw(st.integers(1, 6))))
    profiles = draw(_profiles())
    required = draw(st.booleans())
    policies = draw(_policies(servers, profiles, required=required))
    maintenances = draw(_maintenances(servers, profiles))
    made = GeneratedFleet(
        documents=(
            document("Fleet", "test", {"baseURL": "http://boot.test", "requirePolicy": required} | draw(_GENERAL)),
            *_ALL_IMAGES,
            draw(_streams(servers)),
            *profiles,
            *policies,
            *maintenances,
        ),
        records={name: draw(_records(maintenances)) for name in servers},
        at=draw(_INSTANTS),
    )
    pools = tuple(map(get_name, policies))
    return made.replace_documents(*(draw(server_documents(name, policies=pools, bios=made.bios)) for name in servers))
