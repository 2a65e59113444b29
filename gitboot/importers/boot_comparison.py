"""An old system's answer beside what gitboot would boot: equal, or different by what."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from urllib.parse import urlsplit

from gitboot.importers.inventory import is_secret
from gitboot.migration.former import LEADS, OldBoot
from gitboot.resolve.server_decision_from_plan import Boot, BootFile


class Likeness(StrEnum):
    """How a server's two answers compare."""

    EQUAL = "equal"
    DIFFERS = "differs"
    MISSING = "missing"  # the old system does not know it
    NOTHING = "no boot"  # gitboot would boot it from its disk
    UNKNOWN = "unknown"  # the old system did not answer


_OF_A_REQUEST = frozenset({"ipa-global-request-id"})  # Ironic's, another at each deployment


@dataclass(frozen=True, kw_only=True, slots=True)
class Contrast:
    """One server's comparison; values that look like secrets are not shown."""

    server: str
    verdict: Likeness
    differences: tuple[tuple[str, str, str], ...] = ()  # of what; the old system's, gitboot's
    message: str = ""


def contrasted(
    server: str,
    old: OldBoot,
    old_data: str | None,
    new: Boot,
    digests: Mapping[str, str] = {},
    *,
    old_url: str,
    base_url: str,
) -> Contrast:
    """The comparison of two boots; ``old_data`` is what the old one's arguments lead to, None: to nothing.

    ``digests`` are the sha256 of the old one's files by URL, as far as they are known.
    """
    found = tuple(_differences(old, old_data, new, digests, old_url, base_url))
    return Contrast(server=server, verdict=Likeness.DIFFERS if found else Likeness.EQUAL, differences=found)


def elsewhere(old: OldBoot, new: Boot, *, old_url: str, base_url: str) -> Iterator[str]:
    """The old one's files that lie at another path than gitboot's, and may be the same all the same."""
    for url, file in _pairs(old, new):
        if url is not None and file is not None and _file(url, old_url) != _of(file, base_url):
            yield url


def _pairs(old: OldBoot, new: Boot) -> Iterator[tuple[str | None, BootFile | None]]:
    initrds = new.files.initrds if new.files.kernel else ()
    yield old.kernel, new.files.kernel or new.direct_uki
    yield from zip_longest(old.initrds, initrds)


def _differences(
    old: OldBoot, old_data: str | None, new: Boot, digests: Mapping[str, str], old_url: str, base_url: str
) -> Iterator[tuple[str, str, str]]:
    def is_same(url: str | None, file: BootFile | None) -> bool:
        by_content = file is not None and url is not None and digests.get(url) == file.sha256
        return by_content or _file(url, old_url) == _of(file, base_url)

    kernel = new.files.kernel or new.direct_uki
    if not is_same(old.kernel, kernel):
        yield "kernel", _shown(old.kernel), _shown(kernel.url if kernel else None)
    initrds = new.files.initrds if new.files.kernel else ()
    if not all(is_same(url, file) for url, file in zip_longest(old.initrds, initrds)):
        yield "initrd", _shown(*old.initrds), _shown(*(each.url for each in initrds))
    theirs, ours = (_without_leads(each) for each in (old.arguments, new.kernel_arguments))
    if theirs != ours:
        only_old, only_new = Counter(theirs) - Counter(ours), Counter(ours) - Counter(theirs)
        if only_old or only_new:
            yield "arguments", _shown(*only_old.elements()), _shown(*only_new.elements())
        else:
            yield "order of arguments", _shown(*theirs), _shown(*ours)
    if not _same_text(old_data, _text(new)):
        yield "user data", _sized(old_data), _sized(_text(new))


def _without_leads(arguments: tuple[str, ...]) -> list[str]:
    """The arguments but for where user data is, which is compared by what it says, and for numbers of one request."""
    named = ((each.partition("=")[0], each) for each in arguments)
    return [each for name, each in named if name not in _OF_A_REQUEST and (name not in LEADS or "://" not in each)]


def _file(url: str | None, base: str) -> str | None:
    """A URL as a path below its system, wherever that serves its files: another host may serve the same file."""
    if url is None:
        return None
    parts, root = urlsplit(url), urlsplit(base)
    if parts.netloc != root.netloc:
        return url
    path = parts.path.removeprefix(root.path.rstrip("/")).lstrip("/")
    return path.removeprefix("assets/").removeprefix("cobbler/")


def _of(file: BootFile | None, base_url: str) -> str | None:
    return _file(file.url, base_url) if file is not None else None


def _text(boot: Boot) -> str | None:
    if boot.user_data is None:
        return None
    files = boot.user_data.files
    return files.get("user-data") or next(iter(files.values()), None)


def _same_text(old: str | None, new: str | None) -> bool:
    if old is None or new is None:
        return old is new
    try:
        return bool(json.loads(old) == json.loads(new))
    except (ValueError, RecursionError):
        return old.strip() == new.strip()


def _shown(*values: str | None) -> str:
    return " ".join(f"{each.partition('=')[0][:20]}=…" if is_secret(each) else each for each in values if each) or "-"


def _sized(text: str | None) -> str:
    return f"{len(text.encode()):,} bytes" if text is not None else "-"
