"""Archives: files that a vendor publishes in them, and archives that gitboot refuses to unpack."""

from __future__ import annotations

import errno
import io
import lzma
import os
import resource
import signal
import stat
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gitboot.artifacts import archives
from gitboot.artifacts.archives import read_archive_member
from gitboot.artifacts.downloads import PrefixFetcher, WebFetcher
from gitboot.errors import ArtifactMissing, HostUnreachable
from tests.helpers.artifact_servers import artifact_server
from tests.helpers.cases import for_each

KERNEL, INITRD = b"kernel" * 100_000, os.urandom(300_000)
FILES = {"amd64/linux": KERNEL, "amd64/initrd": INITRD, "README": b""}
LONG = f"{'folder/' * 30}{'n' * 120}"


def make_tar(
    files: Mapping[str, bytes] = FILES,
    mode: str = "w",
    form: int = tarfile.PAX_FORMAT,
    change: Callable[[tarfile.TarInfo], object] = lambda _: None,
) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode=cast("Any", mode), format=form) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 1.5  # pax writes an extended header for this time
            change(info)
            archive.addfile(info, io.BytesIO(content))
    return written.getvalue()


def make_zip(files: Mapping[str, bytes] = FILES, method: int = zipfile.ZIP_DEFLATED, mode: int = 0) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", method) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, method
            archive.writestr(info, content)
    return written.getvalue()


def read(content: bytes, name: str, path: str, chunk: int = 10_000) -> bytes:
    chunks = (content[at : at + chunk] for at in range(0, len(content), chunk))
    return b"".join(read_archive_member(chunks, f"https://vendor.test/{name}", path))


GOOD = {
    "plain.tar": make_tar(),
    "gnu.tar": make_tar(form=tarfile.GNU_FORMAT),
    "ustar.tar": make_tar(form=tarfile.USTAR_FORMAT),
    "dots.tar": make_tar({f"./{name}": content for name, content in FILES.items()}),
    "a.tar.gz": make_tar(mode="w:gz"),
    "two-streams.tgz": b"".join(
        zlib.compress(part, wbits=31) for part in (make_tar()[:100_000], make_tar()[100_000:])
    ),  # as pigz and bgzip write them
    "padded.tgz": make_tar(mode="w:gz") + bytes(1000),
    "a.tar.xz": make_tar(mode="w:xz"),
    "two-streams.txz": lzma.compress(make_tar()[:100_000]) + bytes(8) + lzma.compress(make_tar()[100_000:]),
    "stored.zip": make_zip(method=zipfile.ZIP_STORED),
    "unix.zip": make_zip(mode=stat.S_IFREG | 0o644),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_file_of_an_archive_is_read_as_a_stream(name: str) -> None:
    for path, content in FILES.items():
        assert read(GOOD[name], name, path) == content
        assert read(GOOD[name], name, path, chunk=7_777_777) == content


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_long_path_is_found(form: int) -> None:
    assert read(make_tar({LONG: KERNEL, "other": b"o"}, form=form), "a.tar", LONG) == KERNEL
    assert read(make_tar({LONG: KERNEL, "other": b"o"}, form=form), "a.tar", "other") == b"o"


def set_type(kind: bytes) -> Callable[[tarfile.TarInfo], object]:
    def change(info: tarfile.TarInfo) -> None:
        if info.name == "amd64/linux":
            info.type, info.linkname, info.size = kind, "initrd", 0

    return change


def stream_zeros(size: int) -> Iterator[bytes]:
    compressor, other = zlib.compressobj(9, wbits=31), tarfile.TarInfo("other")
    other.size = size
    yield compressor.compress(other.tobuf())
    for _ in range(size >> 20):
        yield compressor.compress(bytes(1 << 20))
    yield compressor.flush()


EXTENDED = tarfile.TarInfo("header")
EXTENDED.type, EXTENDED.size = tarfile.XHDTYPE, 1 << 40


def make_negative_size_tar() -> bytes:
    """Return an archive in which an extended header states a size, and the next header has a negative size."""
    first, second = tarfile.TarInfo("first"), bytearray(EXTENDED.tobuf(tarfile.GNU_FORMAT))
    first.type, first.size = tarfile.XHDTYPE, 10
    second[124:136] = b"\xff" * 12  # -1 in base 256
    second[148:156] = b" " * 8
    second[148:156] = b"%06o\0 " % sum(second)
    return first.tobuf(tarfile.USTAR_FORMAT) + b"10 size=5\n".ljust(512, b"\0") + second + bytes(100_000)


BAD = {
    "missing": (make_tar({"other": b""}), "a.tar", "the archive does not contain the file amd64/linux"),
    "missing in zip": (make_zip({"other": b""}), "a.zip", "the archive does not contain the file amd64/linux"),
    "symbolic link": (make_tar(change=set_type(tarfile.SYMTYPE)), "a.tar", "not a regular file"),
    "hard link": (make_tar(change=set_type(tarfile.LNKTYPE)), "a.tar", "not a regular file"),
    "device": (make_tar(change=set_type(tarfile.CHRTYPE)), "a.tar", "not a regular file"),
    "folder": (make_tar(change=set_type(tarfile.DIRTYPE)), "a.tar", "not a regular file|no file"),
    "sparse": (make_tar(change=set_type(tarfile.GNUTYPE_SPARSE)), "a.tar", "not a regular file"),
    "link in zip": (make_zip(mode=stat.S_IFLNK | 0o777), "a.zip", "not a regular file"),
    "bzip2 in zip": (make_zip(method=zipfile.ZIP_BZIP2), "a.zip", "its encryption or compression is unsupported"),
    "large extended header": (
        EXTENDED.tobuf(tarfile.GNU_FORMAT),
        "a.tar",
        "an extended tar header is too large: 1,099,511,627,776 bytes",
    ),
    "negative size": (make_negative_size_tar(), "a.tar", "damaged: the archive contains a file with a negative size"),
    "cut off": (make_tar()[:200_000], "a.tar", "damaged: the archive is truncated"),
    "cut off gzip": (make_tar({"amd64/linux": INITRD}, mode="w:gz")[:-1000], "a.tar.gz", "damaged"),
    "cut off xz": (make_tar({"amd64/linux": INITRD}, mode="w:xz")[:-1000], "a.tar.xz", "damaged"),
    "cut off zip": (make_zip()[:-10], "a.zip", "damaged"),
    "not gzip": (make_tar(), "a.tar.gz", "damaged"),
    "not a tar": (KERNEL, "a.tar", "damaged"),
    "empty": (b"", "a.tar.xz", "damaged"),
}


@pytest.mark.parametrize("name", BAD)
def test_another_archive_is_refused(name: str) -> None:
    content, archive, says = BAD[name]
    with pytest.raises(ArtifactMissing, match=says):
        read(content, archive, "amd64/linux")


def test_an_archive_that_unpacks_to_far_more_is_refused() -> None:
    with pytest.raises(ArtifactMissing, match="more than 200 times its size"):
        list(read_archive_member(stream_zeros(1 << 30), "a.tar.gz", "amd64/linux"))
    with pytest.raises(ArtifactMissing, match="more than 200 times its size"):
        read(make_zip({"amd64/linux": bytes(600 << 20)}), "a.zip", "amd64/linux")


def test_an_archive_has_limits_of_its_own_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, value, archive, content in [
        ("_MOST_MEMBERS", 1, "a.tar", make_tar()),
        ("LARGEST_ARTIFACT", 50_000, "a.tar.xz", make_tar(mode="w:xz")),
        ("_LARGEST_ZIP", 50_000, "a.zip", make_zip()),
        ("_LARGEST_ZIP_READ", 100, "a.zip", make_zip()),
    ]:
        with monkeypatch.context() as changed:
            changed.setattr(archives, limit, value)
            with pytest.raises(ArtifactMissing, match=r"archive (has more|is larger) than|directory|damaged"):
                read(content, archive, "amd64/initrd")


def test_a_zip_archive_that_cannot_be_stored_is_not_called_damaged() -> None:
    with small_file_limit(100_000), pytest.raises(HostUnreachable, match=r"cannot be stored .*File too large"):
        read(make_zip(), "a.zip", "amd64/linux")


@for_each("name", ["a.zip", "a.tar", "a.tar.gz"])
def test_an_error_of_the_source_is_not_a_fault_of_the_archive_or_of_temporary_storage(name: str) -> None:
    def chunks() -> Iterator[bytes]:
        yield GOOD["a.tar.gz"][:1000] if name.endswith("gz") else make_tar()[:512]
        raise OSError(errno.EIO, "Input/output error", "/srv/assets/a")

    with pytest.raises(OSError, match=r"Input/output error.*/srv/assets/a"):
        list(read_archive_member(chunks(), name, "amd64/linux"))


@contextmanager
def small_file_limit(size_bytes: int) -> Iterator[None]:
    """Let each write beyond this size fail, like on a full disk."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@for_each("options", [["--sparse"], ["--listed-incremental=snapshot"], ["--sparse", "--listed-incremental=snapshot"]])
def test_members_of_gnu_tar_before_the_wanted_file_are_skipped(options: list[str], tmp_path: Path) -> None:
    (folder := tmp_path / "files").mkdir(exist_ok=True)
    with (folder / "holes").open("wb") as file:
        for number in range(40):  # more than the header itself can describe
            file.seek(number << 20)
            file.write(b"x" * 5000)
    (folder / "linux").write_bytes(KERNEL)
    (tmp_path / "snapshot").unlink(missing_ok=True)
    command = ["tar", "-c", "-f", "-", "--format=gnu", *options, "-C", str(folder), "--sort=name", "."]
    content = subprocess.run(command, check=True, capture_output=True, cwd=tmp_path).stdout
    assert len(content) < 2 << 20 or "--sparse" not in options
    assert read(content, "a.tar", "linux") == KERNEL


@for_each("version", ["0.0", "0.1", "1.0"])
def test_a_sparse_file_of_gnu_tar_is_refused(version: str, tmp_path: Path) -> None:
    """In the pax format, these files have the type of regular files, as in CPython's testtar.tar."""
    with (tmp_path / "linux").open("wb") as file:
        file.seek(1 << 20)
        file.write(KERNEL)
    options = ["--format=posix", "--sparse", f"--sparse-version={version}"]
    command = ["tar", "-c", "-f", "-", *options, "-C", str(tmp_path), "linux"]
    content = subprocess.run(command, check=True, capture_output=True).stdout
    with pytest.raises(ArtifactMissing, match="linux in the archive is not a regular file"):
        read(content, "a.tar", "linux")


SMALL = {"a": b"1" * 2000, LONG: b"2"}
ARCHIVES = {
    "a.tar": make_tar(SMALL),
    "b.tar": make_tar(SMALL, form=tarfile.GNU_FORMAT),
    "a.tar.gz": make_tar(SMALL, mode="w:gz"),
    "a.tar.xz": make_tar(SMALL, mode="w:xz"),
    "a.zip": make_zip(SMALL),
}


@settings(max_examples=400)
@given(
    name=st.sampled_from(sorted(ARCHIVES)),
    path=st.sampled_from([*SMALL, "missing"]),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
    end=st.floats(0.5, 1),
)
def test_a_damaged_archive_raises_no_other_error(
    name: str, path: str, changes: list[tuple[float, int]], end: float
) -> None:
    content = bytearray(ARCHIVES[name])
    for place, value in changes:
        content[int(place * len(content))] = value
    with suppress(ArtifactMissing):
        read(bytes(content[: int(end * len(content))]), name, path, chunk=100)


def test_a_fetcher_reads_a_file_of_an_archive_by_its_fragment() -> None:
    with artifact_server() as web:
        fetcher = PrefixFetcher({"http://": WebFetcher()})
        web.put("/a.tar.gz", make_tar(mode="w:gz"))
        for path, content in (("amd64/linux", KERNEL), ("amd64%2Finitrd", INITRD)):
            with fetcher.read(f"{web.url}/a.tar.gz#{path}", 10) as found:
                assert (found.offset, b"".join(found.chunks)) == (0, content)
        head = fetcher.head(f"{web.url}/a.tar.gz#amd64/linux")
        assert (head.size, head.version) == (None, fetcher.head(f"{web.url}/a.tar.gz").version)
        assert ("GET", "/a.tar.gz#amd64/linux") not in web.asked
        with pytest.raises(ArtifactMissing, match="404"):
            fetcher.head(f"{web.url}/other.zip#amd64/linux")
        with pytest.raises((ArtifactMissing, HostUnreachable)), fetcher.read(f"{web.url}/kernel#amd64/linux"):
            pass
