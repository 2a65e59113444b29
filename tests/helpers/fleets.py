"""Fleets for tests: short YAML in, a loaded repository out; configuration files and BMC credentials."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp
from typing import Final

from gitboot.fleet.documents import FleetRepository
from gitboot.fleet.revision import BlobId, Revision, Snapshot
from gitboot.fleet.validation import load
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.plan_at_time import make_plan
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import Decision, Decisions
from gitboot.resolve.server_plan import BootPlan

# Fleets for tests: short YAML in, a loaded repository out.

SHA = "a" * 64


def at(text: str) -> datetime:
    """An instant of November 2026 from "20T22:00" (day and UTC time), or from a whole ISO text."""
    return datetime.fromisoformat(f"2026-11-{text}" if len(text) < 12 else text).replace(tzinfo=UTC)


def document(kind: str, name: str, spec: str, labels: str = "") -> str:
    metadata = f"{{name: {name}, labels: {{{labels}}}}}"
    return f"apiVersion: gitboot.dev/v1alpha1\nkind: {kind}\nmetadata: {metadata}\nspec: {{{spec}}}\n"


def fleet(spec: str = "baseURL: 'http://boot.test'", *, copies: bool = True) -> str:
    """A Fleet.

    Most tests read boots in the published tree, so without an endpoint the Fleet lets copies serve one-time boots,
    unless ``copies`` is false.
    """
    if copies and "endpoint:" not in spec and "oneTimeBoots" not in spec:
        spec = spec if "serving: {" in spec else f"{spec.rstrip(', ')}, serving: {{}}"
        spec = spec.replace("serving: {", "serving: {oneTimeBoots: Copies, lateEnds: Accept, ").replace(", }", "}")
    return document("Fleet", "test", spec)


def name_ledger(ledger: str, text: str) -> str:
    """A Fleet's document in flow style, which names the ledger that acts, unless it names one."""
    if "kind: Fleet" not in text or "ledger:" in text:
        return text
    if "provisioning: {" in text:
        return text.replace("provisioning: {", f"provisioning: {{ledger: {ledger}, ", 1)
    return text.replace("baseURL:", f"provisioning: {{ledger: {ledger}}}, baseURL:", 1)


def make_uuid(name: str) -> str:
    digits = sha256(name.encode()).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:32]}"


def make_mac(name: str) -> str:
    digits = sha256(name.encode()).hexdigest()
    return "52:54:00:" + ":".join(digits[i : i + 2] for i in (0, 2, 4))


def server(name: str, labels: str = "", spec: str = "", *, firmware: str = "UEFI") -> str:
    more = f", {spec}" if spec else ""
    return document(
        "Server",
        name,
        f"uuid: {make_uuid(name)}, architecture: x86_64, firmware: {firmware}, "
        f'interfaces: [{{mac: "{make_mac(name)}"}}]{more}',
        labels,
    )


def image(name: str, spec: str = "", artifacts: str = "kernel, initrd") -> str:
    files = []
    for artifact in artifacts.split(", "):
        value = f'{{url: "assets:{name}/{artifact}", sha256: {SHA}}}'
        files.append(f"initrds: [{value}]" if artifact == "initrd" else f"{artifact}: {value}")
    more = f", {spec}" if spec else ""
    version = name.rpartition("-")[2]
    return document("BootImage", name, f"version: '{version}', architectures: {{x86_64: {{{', '.join(files)}}}}}{more}")


def profile(name: str, image: str, spec: str = "", *, method: str = "Pxe") -> str:
    more = f", {spec}" if spec else ""
    boots = "" if method == "Disk" else f", {image if ':' in image else f'image: {image}'}"
    return document("BootProfile", name, f"method: {method}{boots}{more}")


def policy(name: str, select: str = "All", spec: str = "", *, boots: str = "web", often: str = "Always") -> str:
    more = f", {spec}" if spec else ""
    fields = f", profile: {boots}, networkBoot: {often}" if "inherits" not in spec else ""
    fields += ", reinstall: EveryBoot" if often == "Always" and "reinstall" not in spec else ""
    return document("BootPolicy", name, f"select: {select}{fields}{more}")


def maintenance(name: str, window: str = "", spec: str = "", *, select: str = "All", boots: str = "repair") -> str:
    """A maintenance with a window such as "20T22:00 21T04:00"; "-" leaves an end open."""
    more = f", {spec}" if spec else ""
    start, _, end = window.partition(" ")
    ends = [
        f"{key}: '{at(value).isoformat().replace('+00:00', 'Z')}'"
        for key, value in (("start", start), ("end", end))
        if value not in ("", "-")
    ]
    fields = f", window: {{{', '.join(ends)}}}" if ends else ""
    fields += ", reinstall: EveryBoot" if "networkBoot: Once" not in spec else ""
    return document("Maintenance", name, f"select: {select}, profile: {boots}{fields}{more}")


def snapshot(*documents: str, files: Mapping[str, str] | None = None, revision: str = "test") -> Snapshot:
    contents = {f"{number:03}.yaml": text for number, text in enumerate(documents)} | dict(files or {})
    blobs = {path: BlobId(sha256(text.encode()).hexdigest()) for path, text in contents.items()}
    data = {blobs[path]: text.encode() for path, text in contents.items()}
    return Snapshot(revision=Revision(revision), blobs=blobs, read=data.__getitem__)


def repository(*documents: str, files: Mapping[str, str] | None = None, revision: str = "test") -> FleetRepository:
    return load(snapshot(*documents, files=files, revision=revision))


def decided(*documents: str, files: Mapping[str, str] | None = None) -> Decisions:
    return decide(repository(*documents, files=files))


def decision(name: str, *documents: str, files: Mapping[str, str] | None = None) -> Decision:
    return decided(*documents, files=files).servers[name]


def planned(instant: datetime, *documents: str, record: Record | None = None, name: str = "web01") -> BootPlan | None:
    return make_plan(decision(name, *documents), instant, record)


# One workload, one repair image, one server: what most tests begin with.
SEED = (
    fleet(),
    server("web01", "role: web"),
    image("flatcar-1"),
    image("memtest-7", "writesDisk: false"),
    profile("web", "flatcar-1"),
    profile("repair", "memtest-7"),
    policy("web", "{matchLabels: {role: web}}"),
)


# Configuration files and credentials for BMCs of the instances that tests start.


def write_configuration(**settings: object) -> tuple[str, str]:
    """Write settings to a new configuration file; return the arguments that name the file."""
    file, path = mkstemp(suffix=".toml", dir=_folder().name)
    with open(file, "w") as writing:
        writing.writelines(f"{name.replace('_', '-')} = {json.dumps(value)}\n" for name, value in settings.items())
    return "--config", str(Path(path))


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="gitboot-configured-")  # removed when the tests end


HERE: Final = """\
networks = ["127.0.0.0/8", "::1"]
http = true
unverified = true
repository-authorities = true
"""


def store_credentials(
    directory: Path, name: str = "rack", *, user: str = "root", password: str, trust: str = HERE
) -> None:
    """Leave user and password under ``name``, and what all credentials there may be used for."""
    (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / name / "username").write_text(f"{user}\n")
    (directory / name / "password").write_text(f"{password}\n")
    (directory / "access.toml").write_text(trust)
