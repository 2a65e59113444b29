"""Web page for operators: its static files, and the data of a single server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from gitboot.jsonio import encode_canonical, format_instant
from gitboot.render.paths import PAGE_DATA, File

if TYPE_CHECKING:
    from gitboot.fleet.identities import Machine
    from gitboot.fleet.revision import FileChanges
    from gitboot.resolve.server_decision import FieldSources
    from gitboot.resolve.server_plan import BootPlan

SCRIPT: Final = "text/javascript; charset=utf-8"
FORMAT: Final = 2
PAGE_CONTENT_TYPES: Final[Mapping[str, str]] = {
    "index.html": "text/html; charset=utf-8",
    "data.js": SCRIPT,
    "draw.js": SCRIPT,
    "help.html": "text/html; charset=utf-8",
    "help.js": SCRIPT,
    "page.css": "text/css; charset=utf-8",
    "page.js": SCRIPT,
    "rows.js": SCRIPT,
    "words.js": SCRIPT,
}


def read_page_file(name: str) -> bytes:
    """Return the content of one of the page's static files."""
    return (Path(__file__).with_name("page_files") / name).read_bytes()


def page_shard(server: str) -> str:
    """Return the page shard that contains a server, as two hexadecimal digits."""
    return f"{crc32(server.encode()) & 0xFF:02x}"


def render_data_script(name: str, content: bytes) -> bytes:
    """Return a script that stores a JSON value for the page under ``name``. The name must consist of ASCII letters."""
    return b'gitboot("%b",%b);\n' % (name.encode(), content.strip())


def render_server_data(
    summary: Mapping[str, Any],
    document: Mapping[str, Any],
    now: BootPlan | None,
    later: Iterable[tuple[datetime, BootPlan | None]],
    machine: Machine | None,
    source: FieldSources | None,
) -> tuple[str, File]:
    """Return the path and the content of the file with the page's data about one server."""
    bmc = machine.bmc if machine is not None else None
    name = f"server/{summary['server']}"
    facts = {
        **{key: value for key, value in summary.items() if key != "server"},
        "name": summary["server"],
        "bmc": {"address": bmc.address, "system": bmc.system} if bmc is not None else None,
        "later": [_build_change(since, plan) for since, plan in list_plan_changes(now, later)],
        "shard": page_shard(summary["server"]),
        "lines": source.lines if source is not None else None,
        "document": document,
    }
    return f"{PAGE_DATA}{name}.js", File(render_data_script(name, encode_canonical(facts)), SCRIPT)


MAX_HISTORY_PATHS: Final = 5000  # the maximum number of paths in the page's history, from the newest commit on
_MAX_TEXT: Final = 120  # the maximum number of characters of a subject or an author's name


def render_history(changes: Iterable[FileChanges]) -> bytes:
    """Return the page's history: the latest commits, newest first, and the files that each commit changed.

    To limit the size, the history contains only the number of files if a commit changed too many files.
    """
    commits: list[dict[str, Any]] = []
    files: dict[str, list[int]] = {}
    left = MAX_HISTORY_PATHS
    for each in changes:
        if not each.files:
            continue
        if is_listed := len(each.files) <= left:
            left -= len(each.files)
            for path in each.files:
                files.setdefault(path, []).append(len(commits))
        commits.append(
            {
                "commit": each.commit.revision,
                "at": format_instant(each.commit.date),
                "author": each.commit.author.rpartition(" <")[0][:_MAX_TEXT],
                "subject": each.commit.subject[:_MAX_TEXT],
                "files": len(each.files),
                "listed": is_listed,
            }
        )
    return encode_canonical({"commits": commits, "files": files})


def list_plan_changes(
    now: BootPlan | None, later: Iterable[tuple[datetime, BootPlan | None]]
) -> Iterator[tuple[datetime, BootPlan | None]]:
    """Yield the transitions that change what the server boots, its phase, or the maintenance that selects the boot.

    Omit plans that take effect only if no instance renders the server again in time.
    """
    from gitboot.resolve.server_plan import Cause  # imported here, because endpoints start without the model

    before = _comparable_boot(now)
    for since, plan in later:
        if _comparable_boot(plan) != before and (plan is None or plan.cause is not Cause.INSTANCE_SILENT):
            before = _comparable_boot(plan)
            yield since, plan


def _comparable_boot(plan: BootPlan | None) -> tuple[object, ...]:
    return (plan.phase, plan.maintenance, plan.boot) if plan is not None else ()


def _build_change(since: datetime, plan: BootPlan | None) -> dict[str, Any]:
    return {
        "from": format_instant(since),
        "phase": plan.phase if plan else None,
        "image": plan.boot.image if plan and plan.boot else None,
        "by": (plan.maintenance or plan.policy) if plan else None,
        "cause": plan.cause if plan else None,
    }
