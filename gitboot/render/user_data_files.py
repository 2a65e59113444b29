"""User data files and ISO images."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from gitboot.model.boot_image import UserDataFormat
from gitboot.model.scalars import lookup_uuids
from gitboot.render import paths
from gitboot.render.paths import BUNDLED, ContentType, File
from gitboot.resolve.server_decision import Decision, UserDataFiles, replace_token
from gitboot.resolve.user_data_formats import find_volume, format_meta_data, parse_family

if TYPE_CHECKING:
    from gitboot.resolve.server_plan import BootPlan

# The matchbox path of each format. All other formats use /generic (matchbox: docs/api-http.md).
_MATCHBOX: Final = {
    UserDataFormat.IGNITION: "ignition",
    UserDataFormat.CLOUD_INIT: "cloud",
    UserDataFormat.AUTOINSTALL: "cloud",
}


def render(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """Yield the user data of a plan.

    The paths are below ``o/``. There are also paths with the UUID, and paths with the token of a one-time boot.

    Only endpoints serve secrets. `server_files` does not write the secrets to the output tree.
    """
    if plan is not None and plan.boot is not None and plan.boot.user_data is not None:
        yield from render_immutable(plan.boot.user_data)
    if plan is None or plan.user_data is None:
        return
    yield from render_immutable(plan.user_data)
    if parse_family(plan.user_data.format) is UserDataFormat.IGNITION:
        text = insert_attempt_token("".join(plan.user_data.files.values()), decision, plan)
        document = File(text.encode(), ContentType.IGNITION)
        yield from ((paths.IGNITION.build_path(uuid), document) for uuid in lookup_uuids(plan.uuid))
    if plan.data_medium is not None:
        medium = File(_build_medium(plan.user_data, decision, plan), paths.MEDIUM.content_type)
        yield paths.MEDIUM.build_path(plan.uuid, plan.data_medium), medium
    if plan.data is not None:
        for name, text in _list_requested_files(plan.user_data):
            file = File(insert_attempt_token(text, decision, plan).encode(), paths.find_artifact_type(name))
            yield from ((paths.DATA.build_path(mac, plan.data, name), file) for mac in decision.macs)
        tokens = [token for token in (decision.token, plan.token) if token is not None]
        for name, text in plan.user_data.secrets.items():
            file = File(text.encode(), ContentType.OCTETS)
            yield from ((paths.SECRET.build_path(mac, token, name), file) for token in tokens for mac in decision.macs)


def _build_medium(user_data: UserDataFiles, decision: Decision, plan: BootPlan) -> bytes:
    found = find_volume(user_data.format)
    assert found is not None  # noqa: S101 - rule R6 rejects a format without a volume
    label, folder = found
    files = {name: insert_attempt_token(text, decision, plan) for name, text in _list_requested_files(user_data)}
    # Talos reads the files of NoCloud, which have fixed names
    if parse_family(user_data.format) is UserDataFormat.TALOS:
        meta_data = format_meta_data({"instance-id": plan.uuid, "local-hostname": plan.server})
        files = {"user-data": "".join(files.values()), "meta-data": meta_data}
    return build_iso(label, {f"{folder}{name}": text.encode() for name, text in files.items()})


def _list_requested_files(user_data: UserDataFiles) -> Iterator[tuple[str, str]]:
    """Yield the user data files, and an empty vendor-data file if cloud-init would fetch one.

    If vendor-data does not exist, cloud-init tries to fetch this file ten times, once a second.
    """
    yield from user_data.files.items()
    if "meta-data" in user_data.files and "vendor-data" not in user_data.files:
        yield "vendor-data", ""


def insert_attempt_token(text: str, decision: Decision, plan: BootPlan) -> str:
    """Replace the first attempt's token in ``text`` with the token of this attempt.

    The installer uses the token to report its result.
    """
    if plan.token is None or decision.token is None:
        return text
    return replace_token(text, decision.token, plan.token)


def render_immutable(user_data: UserDataFiles) -> Iterator[tuple[str, File]]:
    """Yield the user data files. The name of their folder is the digest of the files."""
    for name, text in user_data.files.items():
        yield f"boot/{user_data.folder}/{name}", File(text.encode(), paths.find_artifact_type(name))


def render_nocloud(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """Yield all files of ``nocloud/<uuid>/``, which a NoCloud seed with ``__dmi.system-uuid__`` reads.

    Files without content are empty files, because cloud-init fetches every file, and waits for a missing file
    (cloud-init: DataSourceNoCloud, util.read_seeded).
    """
    user_data = plan.user_data if plan is not None else None
    if plan is None or user_data is None or "meta-data" not in user_data.files:
        return
    for name in BUNDLED:
        text = insert_attempt_token(user_data.files.get(name, ""), decision, plan)
        file = File(text.encode(), ContentType.CLOUD_CONFIG)
        yield from ((paths.NOCLOUD.build_path(uuid, name=name), file) for uuid in lookup_uuids(plan.uuid))


def render_matchbox(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """Yield the user data for each MAC address, at the path that matchbox clients use for its format."""
    user_data = plan.user_data if plan is not None else None
    if plan is None or user_data is None:
        return
    path_name = _MATCHBOX.get(parse_family(user_data.format), "generic")
    text = next(text for name, text in user_data.files.items() if name not in BUNDLED or name == "user-data")
    file = File(insert_attempt_token(text, decision, plan).encode())
    yield from ((paths.USER_DATA.build_path(mac, name=path_name), file) for mac in decision.macs)


# ISO images (ECMA-119) with Rock Ridge and Joliet names

_SECTOR: Final = 2048
# the first sector of the descriptors; the sectors before it are for boot code, and are empty here
_DESCRIPTORS: Final = 16
_DATE: Final = bytes((80, 1, 1, 0, 0, 0, 0))  # the date 1980-01-01, which is in every record
_LONG_DATE: Final = b"1980010100000000\0"
_NO_DATE: Final = b"0" * 16 + b"\0"
_FOLDER: Final = 2  # the flag that marks the record of a folder
_SP: Final = b"SP\x07\x01\xbe\xef\x00"  # the records contain fields of the System Use Sharing Protocol (SUSP)
_ER: Final = b"ER\x12\x01\x0a\x00\x00\x01RRIP_1991A"  # the fields follow the Rock Ridge Interchange Protocol (RRIP)


class _NameEncoding(Struct, frozen=True):
    """The way in which one of the two directory trees of the disc encodes names."""

    encode: Callable[[str, bool], bytes]  # arguments: a name, and whether it is the name of a folder
    has_rock_ridge: bool  # whether the records contain the RRIP fields


def _encode_plain_name(name: str, is_folder: bool) -> bytes:
    stem, _, suffix = re.sub(r"[^A-Z0-9.]", "_", name.upper()).partition(".")
    return stem[:8].encode() if is_folder else f"{stem[:8]}.{suffix[:3]};1".encode()


def _encode_joliet_name(name: str, is_folder: bool) -> bytes:
    return (name if is_folder else f"{name};1").encode("utf-16-be")


_PLAIN: Final = _NameEncoding(_encode_plain_name, has_rock_ridge=True)
_JOLIET: Final = _NameEncoding(_encode_joliet_name, has_rock_ridge=False)


def build_iso(label: str, files: Mapping[str, bytes]) -> bytes:
    """Return the ISO image of a volume. ``files`` maps the paths of the files on the volume to their contents.

    The caller must respect these limits:

    - Folders are not nested, and the records of a folder fit into one sector.
    - Names are short and in ASCII. Two names in a folder differ in their first eight characters or in their suffix.
    """
    folders = sorted({path.rpartition("/")[0] for path in files} | {""})
    tables = _DESCRIPTORS + 3
    sector = tables + 4
    folder_sectors: dict[tuple[_NameEncoding, str], int] = {}
    for encoding in (_PLAIN, _JOLIET):
        for folder in folders:
            folder_sectors[encoding, folder] = sector
            sector += 1
    extents: dict[str, tuple[int, int]] = {}
    content = b""
    for path, data in sorted(files.items()):
        extents[path] = (sector + len(content) // _SECTOR, len(data))
        content += _pad_to_sector(data)
    size = sector + len(content) // _SECTOR
    path_tables = {encoding: _build_path_tables(encoding, folder_sectors, folders) for encoding in (_PLAIN, _JOLIET)}
    sectors = [
        bytes(_DESCRIPTORS * _SECTOR),
        _build_descriptor(
            kind=1,
            label=label.encode(),
            escape=b"",
            size=size,
            tables=tables,
            path_tables=path_tables[_PLAIN],
            root_sector=folder_sectors[_PLAIN, ""],
        ),
        _build_descriptor(
            kind=2,
            label=label.encode("utf-16-be"),
            escape=b"%/E",
            size=size,
            tables=tables + 2,
            path_tables=path_tables[_JOLIET],
            root_sector=folder_sectors[_JOLIET, ""],
        ),
        _pad_to_sector(b"\xffCD001\x01"),
        *(_pad_to_sector(table) for encoding in (_PLAIN, _JOLIET) for table in path_tables[encoding]),
        *(_build_folder(encoding, folder, folder_sectors, extents) for encoding, folder in folder_sectors),
        content,
    ]
    return b"".join(sectors)


def _build_descriptor(
    *,
    kind: int,  # 1: the primary volume descriptor; 2: the supplementary descriptor for Joliet
    label: bytes,
    escape: bytes,
    size: int,  # of the volume, in sectors
    tables: int,  # the first of the two sectors with the path tables
    path_tables: tuple[bytes, bytes],
    root_sector: int,
) -> bytes:
    """Return a volume descriptor (ECMA-119, 8.4 and 8.5)."""
    space = b" " if kind == 1 else b"\0 "
    return _pad_to_sector(
        bytes((kind,))
        + b"CD001\x01\0"
        + _pad(b"", space, 32)
        + _pad(label, space, 32)
        + bytes(8)
        + _encode_both_orders(size)
        + escape.ljust(32, b"\0")
        + _encode_both_orders_short(1) * 2
        + _encode_both_orders_short(_SECTOR)
        + _encode_both_orders(len(path_tables[0]))
        + struct.pack("<II", tables, 0)
        + struct.pack(">II", tables + 1, 0)
        + _build_record(b"\0", root_sector, _SECTOR, is_folder=True)
        # the fields volume set, publisher, preparer, application, and three file names
        + _pad(b"", space, 4 * 128 + 3 * 37)
        + _LONG_DATE * 2
        + _NO_DATE * 2
        + b"\x01\0"
    )


def _build_path_tables(
    encoding: _NameEncoding, folder_sectors: Mapping[tuple[_NameEncoding, str], int], folders: list[str]
) -> tuple[bytes, bytes]:
    """Return the path tables of all folders below the root, in both byte orders (ECMA-119, 9.4)."""
    tables = []
    for order in "<>":
        table = b""
        for folder in folders:
            name = encoding.encode(folder, True) if folder else b"\0"
            table += struct.pack(f"{order}BBIH", len(name), 0, folder_sectors[encoding, folder], 1) + _pad_to_even(name)
        tables.append(table)
    return tables[0], tables[1]


class _Entry(NamedTuple):
    """A file or a folder of the volume."""

    name: str
    sector: int
    size: int  # in bytes
    is_folder: bool


def _build_folder(
    encoding: _NameEncoding,
    folder: str,
    folder_sectors: Mapping[tuple[_NameEncoding, str], int],
    extents: Mapping[str, tuple[int, int]],
) -> bytes:
    """Return the sector with the records of a folder. ``extents`` are the first sector and the size of each file."""
    entries: dict[bytes, _Entry] = {}  # by encoded name
    for path, (sector, size) in extents.items():
        parent, _, name = path.rpartition("/")
        if parent == folder:
            entries[encoding.encode(name, False)] = _Entry(name, sector, size, is_folder=False)
    if not folder:  # folders are not nested
        for (folder_encoding, name), sector in folder_sectors.items():
            if folder_encoding is encoding and name:
                entries[encoding.encode(name, True)] = _Entry(name, sector, _SECTOR, is_folder=True)

    def build_record(encoded_name: bytes, entry: _Entry, system_use: bytes) -> bytes:
        fields = system_use if encoding.has_rock_ridge else b""
        return _build_record(encoded_name, entry.sector, entry.size, is_folder=entry.is_folder, system_use=fields)

    own_entry = _Entry(".", folder_sectors[encoding, folder], _SECTOR, is_folder=True)
    own_mode = _build_mode(True, 2 + sum(entry.is_folder for entry in entries.values()))
    parent_entry = _Entry("..", folder_sectors[encoding, ""], _SECTOR, is_folder=True)
    records = [
        build_record(b"\0", own_entry, own_mode if folder else _SP + own_mode + _ER),
        build_record(b"\1", parent_entry, _build_mode(True, 2)),
    ]
    for encoded_name, entry in sorted(entries.items()):
        mode = _build_mode(entry.is_folder, 2 if entry.is_folder else 1)
        rock_ridge_name = b"NM" + bytes((5 + len(entry.name), 1, 0)) + entry.name.encode()  # the NM field of RRIP
        records.append(build_record(encoded_name, entry, mode + rock_ridge_name))
    content = b"".join(records)
    assert len(content) <= _SECTOR, folder  # noqa: S101 - user data has few files
    return _pad_to_sector(content)


def _build_record(name: bytes, sector: int, size: int, *, is_folder: bool, system_use: bytes = b"") -> bytes:
    """Return a directory record (ECMA-119, 9.1)."""
    body = (
        _encode_both_orders(sector)
        + _encode_both_orders(size)
        + _DATE
        + bytes((_FOLDER if is_folder else 0, 0, 0))
        + _encode_both_orders_short(1)
        + bytes((len(name),))
        + name
        + (b"\0" if len(name) % 2 == 0 else b"")
        + _pad_to_even(system_use)
    )
    return bytes((len(body) + 2, 0)) + body


def _build_mode(is_folder: bool, links: int) -> bytes:
    """Return the PX field of RRIP: root owns the file, and all users may read it."""
    return b"PX\x24\x01" + b"".join(map(_encode_both_orders, (0o040555 if is_folder else 0o100444, links, 0, 0)))


def _pad(text: bytes, space: bytes, size: int) -> bytes:
    return (text + space * size)[:size]


def _encode_both_orders(number: int) -> bytes:
    return struct.pack("<I", number) + struct.pack(">I", number)


def _encode_both_orders_short(number: int) -> bytes:
    return struct.pack("<H", number) + struct.pack(">H", number)


def _pad_to_even(data: bytes) -> bytes:
    return data + bytes(len(data) % 2)


def _pad_to_sector(data: bytes) -> bytes:
    return data + bytes(-len(data) % _SECTOR)
