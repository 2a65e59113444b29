"""Rendered diffs: unified diffs of the boot files that two commits produce."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from difflib import unified_diff
from io import StringIO
from typing import Any, Final

from msgspec import Struct, structs

from gitboot.jsonio import Digest, compute_digest
from gitboot.model.boot_policy import NetworkBoot
from gitboot.model.fleet import Output
from gitboot.render import grub, ipxe
from gitboot.render.paths import SIGNED_GRUB, File
from gitboot.resolve.secret_scan import find_leaks, find_secrets
from gitboot.resolve.server_decision import Boot, Decision, Decisions, report_token
from gitboot.resolve.server_plan import BootPlan, Cause, Phase
from gitboot.review.decision_changes import ServerChange
from gitboot.text import format_count, format_omitted

Texts = dict[str, str]  # texts by file name, such as boot.ipxe or user-data
Boots = dict[str, Texts]  # files by boot, such as BootPolicy or Maintenance/memory-test


class RenderedDiff(Struct, frozen=True, kw_only=True):
    """The diff of a file that a machine fetches."""

    boot: str  # the boot, such as BootPolicy, Maintenance/memory-test or "unknown servers"
    file: str  # the file, such as boot.ipxe or config.ign
    lines: tuple[str, ...]  # the lines of a unified diff, without line ends


class RenderedChanges:
    """Compares the boot files that two commits produce for a server."""

    def __init__(self, old: Decisions | None, new: Decisions) -> None:
        self._old, self._new = old, new
        self._keys: dict[Digest, Digest] = {}  # differences by the digest of both texts; most servers share these texts

    def make_key(self, change: ServerChange) -> Digest:
        """Return a digest of the diffs of a server's files, in which placeholders replace the server's own values.

        Two servers have the same digest if and only if their diffs contain the same lines at the same positions. The
        digest includes lines that look like secrets.
        """
        if change.new is None:
            return compute_digest(None)  # the server no longer has files
        before, after = self._render_boots(change, lay_out_user_data)
        old_values, new_values = find_own_values(change.old, change.new, self._old, self._new)
        texts = [
            (boot, file, _mask_text(old, old_values), _mask_text(new, new_values))
            for boot, file, old, new in _pair_texts(before, after)
        ]
        texts_digest = compute_digest(texts)
        if texts_digest not in self._keys:
            self._keys[texts_digest] = compute_digest(
                [[boot, file, *_find_hunks(old, new)] for boot, file, old, new in texts if old != new]
            )
        return self._keys[texts_digest]

    def render_diffs(self, change: ServerChange) -> tuple[RenderedDiff, ...]:
        """Return the diffs of a server's files for each boot, without values that look like secrets."""
        old_shown, new_shown = self._render_boots(change, hide_secrets)
        old_whole, new_whole = self._render_boots(change, lay_out_user_data)
        return tuple(_diff_boots(old_shown, new_shown, old_whole, new_whole))

    def mask_lines(self, change: ServerChange, diffs: Iterable[RenderedDiff]) -> list[str]:
        """Return the added and removed lines in a server's diffs. Placeholder names replace the server's own values."""
        old_values, new_values = find_own_values(change.old, change.new, self._old, self._new)
        lines = [line for diff in diffs for line in diff.lines[2:] if line[:1] in ("-", "+")]
        return [_mask_values(line, old_values if line.startswith("-") else new_values) for line in lines]

    def list_own_values(self, change: ServerChange, diffs: Iterable[RenderedDiff]) -> tuple[str, ...]:
        """Return the names of a server's own values that occur in the added or removed lines of the server's diffs.

        The names are placeholders such as name, UUID, MAC, address, base URL and token.
        """
        names = {name for line in self.mask_lines(change, diffs) for name in _PLACEHOLDER.findall(line)}
        return tuple(sorted(names - {_DIGEST}))

    def _render_boots(self, change: ServerChange, prepare: Callable[[Boot], Boot]) -> tuple[Boots, Boots]:
        before = _render_decision(self._old, change.old, prepare) if self._old and change.old else {}
        after = _render_decision(self._new, change.new, prepare) if change.new else {}
        return before, after


def _pair_texts(old: Boots, new: Boots) -> Iterator[tuple[str, str, str | None, str | None]]:
    """Yield each boot and file with its old and its new text, sorted by boot and file. None: there is no such file."""
    for boot in sorted(old.keys() | new.keys()):
        old_texts, new_texts = old.get(boot, {}), new.get(boot, {})
        for file in sorted(old_texts.keys() | new_texts.keys()):
            yield boot, file, old_texts.get(file), new_texts.get(file)


def _mask_text(text: str | None, own_values: Mapping[str, str]) -> str | None:
    return _mask_values(text, own_values) if text is not None else None


def _find_hunks(old: str | None, new: str | None) -> list[object]:
    """Return the position and the lines of each difference. A missing text and an empty text count as different."""
    old_lines, new_lines = (_split_lines(text) for text in (old, new))
    equal = 0  # skip equal lines at the beginning to compute the diff faster
    while equal < min(len(old_lines), len(new_lines)) and old_lines[equal] == new_lines[equal]:
        equal += 1
    return [
        [old is None, new is None],
        equal,
        list(unified_diff(old_lines[equal:], new_lines[equal:], n=0, lineterm="")),
    ]


def _split_lines(text: str | None) -> list[str]:
    return text.split("\n") if text is not None else []


def diff_unknown_boots(old: Decisions | None, new: Decisions) -> tuple[RenderedDiff, ...]:
    """Return the diffs of the files that unknown machines fetch."""

    def render_texts(decisions: Decisions) -> Texts:
        script = dict(ipxe.render_shared(decisions)).get("boot/unknown.ipxe")
        texts = {"unknown.ipxe": script.content.decode()} if script else {}
        for architecture, boot in sorted((decisions.unknown or {}).items()):
            if boot.user_data is not None:
                texts |= {f"{architecture} {name}": text for name, text in boot.user_data.files.items()}
        return texts

    return _diff_common_files("unknown servers", render_texts, old, new)


def diff_shared_files(old: Decisions | None, new: Decisions) -> tuple[RenderedDiff, ...]:
    """Return the diffs of the files that each machine fetches first."""

    def render_texts(decisions: Decisions) -> Texts:
        if Output.GRUB not in decisions.outputs:
            return {}
        shared = dict(grub.render_shared(decisions))
        del shared[SIGNED_GRUB]  # the file is the same for every fleet
        return {path.removeprefix("boot/"): file.content.decode() for path, file in shared.items()}

    return _diff_common_files("all machines", render_texts, old, new)


def _diff_common_files(
    boot: str, render_texts: Callable[[Decisions], Texts], old: Decisions | None, new: Decisions
) -> tuple[RenderedDiff, ...]:
    def render(decisions: Decisions | None, prepare: Callable[[Boot], Boot]) -> Boots:
        return {boot: render_texts(_prepare_unknown(decisions, prepare))} if decisions else {}

    old_shown, new_shown = render(old, hide_secrets), render(new, hide_secrets)
    old_whole, new_whole = render(old, lay_out_user_data), render(new, lay_out_user_data)
    return tuple(_diff_boots(old_shown, new_shown, old_whole, new_whole))


def _diff_boots(old: Boots, new: Boots, old_whole: Boots, new_whole: Boots) -> Iterator[RenderedDiff]:
    """Yield the diffs between files with hidden secrets. The ``whole`` files contain the secrets."""
    for boot in dict.fromkeys((*old, *new)):
        old_texts, new_texts = old.get(boot, {}), new.get(boot, {})
        for file in sorted(old_texts.keys() | new_texts.keys()):
            old_text, new_text = old_texts.get(file), new_texts.get(file)
            old_hidden = _count_hidden_lines(old_text, old_whole.get(boot, {}).get(file))
            new_hidden = _count_hidden_lines(new_text, new_whole.get(boot, {}).get(file))
            # The number of changed lines that are hidden because they look like a secret.
            hidden = ((old_hidden - new_hidden) + (new_hidden - old_hidden)).total()
            if lines := _diff_texts(old_text, new_text, file, hidden):
                yield RenderedDiff(boot=boot, file=file, lines=tuple(lines))


def _count_hidden_lines(shown: str | None, whole: str | None) -> Counter[str]:
    return Counter(_split_lines(whole)) - Counter(_split_lines(shown))


_CONTEXT_LINES: Final = 2  # number of unchanged lines around each difference
# maximum number of lines in one diff; an additional line shows the number of omitted lines
_MAX_DIFF_LINES: Final = 4_000
_NO_LINE_END: Final = "\\ No newline at end of file"  # as in the diffs of Git


def _diff_texts(old: str | None, new: str | None, file: str, hidden_lines: int) -> list[str]:
    # StringIO splits only at line feeds, unlike str.splitlines
    old_lines, new_lines = (list(StringIO(text or "")) for text in (old, new))
    before, after = (file if text is not None else "/dev/null" for text in (old, new))
    lines = list[str]()
    for line in unified_diff(old_lines, new_lines, before, after, n=_CONTEXT_LINES):
        lines.append(line.removesuffix("\n"))
        if not line.endswith("\n"):
            lines.append(_NO_LINE_END)
    if hidden_lines and not lines:
        lines = [f"--- {before}", f"+++ {after}"]
    if len(lines) > _MAX_DIFF_LINES:
        lines[_MAX_DIFF_LINES:] = [f"… {format_omitted(len(lines) - _MAX_DIFF_LINES, 'line')}"]
    if hidden_lines and old is not None and new is not None:
        lines.append(f"… {format_count(hidden_lines, 'line')} HIDDEN: changed, and may contain a secret")
    return lines


def _render_decision(decisions: Decisions, decision: Decision, prepare: Callable[[Boot], Boot]) -> Boots:
    boots: Boots = {}
    policy = decision.policy
    if policy is not None and policy.boot is not None and policy.network_boot is not NetworkBoot.NEVER:
        cause = Cause.ALWAYS if policy.network_boot is NetworkBoot.ALWAYS else Cause.PENDING
        plan = _make_plan(decision, prepare(policy.boot), Phase.NETWORK, cause, policy=policy.policy)
        boots["BootPolicy"] = _render_texts(decisions, decision, plan)
    for maintenance in decision.maintenances:
        if maintenance.boot is not None:
            boot, name = prepare(maintenance.boot), maintenance.name
            plan = _make_plan(decision, boot, Phase.MAINTENANCE, Cause.MAINTENANCE, maintenance=name)
            boots[f"Maintenance/{name}"] = _render_texts(decisions, decision, plan)
    return boots


def _make_plan(
    decision: Decision,
    boot: Boot,
    phase: Phase,
    cause: Cause,
    *,
    policy: str | None = None,
    maintenance: str | None = None,
) -> BootPlan:
    return BootPlan(
        server=decision.server,
        uuid=decision.uuid,
        macs=decision.macs,
        architecture=decision.architecture,
        firmware=decision.firmware,
        base_url=decision.base_url,
        restrict=decision.restrict,
        local_disk=decision.local_disk,
        phase=phase,
        cause=cause,
        policy=policy,
        maintenance=maintenance,
        key=None,
        boot=boot,
        user_data=None,
        override=None,
        next_transition=None,
    )


def _render_texts(decisions: Decisions, decision: Decision, plan: BootPlan) -> Texts:
    texts: Texts = {}
    has_ipxe = Output.IPXE in decisions.outputs
    if has_ipxe:
        texts["boot.ipxe"] = _extract_script(dict(ipxe.render(decision, plan)), "boot.ipxe")
    # A GRUB script from a template can differ even if the iPXE scripts are equal.
    has_own_entry = plan.boot is not None and "grub" in plan.boot.entries
    if has_own_entry or (Output.GRUB in decisions.outputs and not has_ipxe):
        texts["grub.cfg"] = _extract_script(dict(grub.render(decision, plan)), "grub.cfg")
    if plan.boot is not None and plan.boot.user_data is not None:
        texts |= plan.boot.user_data.files
        if secrets := plan.boot.user_data.secrets:  # show the digests of these secrets, which are encrypted
            texts["secrets"] = "".join(f"{name} {compute_digest(text)}\n" for name, text in sorted(secrets.items()))
    return texts


def _extract_script(files: dict[str, File], name: str) -> str:
    """Return a boot script without the digest of the plan, because any changed input changes this digest."""
    script = next(file for path, file in files.items() if path.endswith(f"/{name}"))
    return "".join(line for line in StringIO(script.content.decode()) if not line.startswith("# gitboot plan "))


def _prepare_unknown(decisions: Decisions, prepare: Callable[[Boot], Boot]) -> Decisions:
    if decisions.unknown is None:
        return decisions
    return structs.replace(decisions, unknown={name: prepare(boot) for name, boot in decisions.unknown.items()})


# A server's own values


_OPEN: Final = "\N{MATHEMATICAL LEFT ANGLE BRACKET}"
_CLOSE: Final = "\N{MATHEMATICAL RIGHT ANGLE BRACKET}"
_NAME: Final = "name"  # only this value may occur within a longer word
_DIGEST: Final = "digest"  # the digest of the user data, whose text is in the diff anyway
_PLACEHOLDER: Final = re.compile(f"{_OPEN}([a-zA-Z]+(?: URL)?)[^{_OPEN}{_CLOSE}]*{_CLOSE}")


def _mask_values(text: str, own: Mapping[str, str]) -> str:
    """Return the text with ⟨NAME⟩ instead of each value in ``own``, which maps values to names.

    The character ⟨ is escaped as ⟨⟨⟩. If values overlap, the function replaces the value that begins first. If several
    values begin at the same place, the function replaces the longest value.
    """
    matches: list[tuple[int, int, str]] = []  # start, negative length, and name, so that sorting prefers longer values
    # Search for each value without a regular expression. To compile a pattern for each server would take twice as long
    # as the rest of this module.
    for value, name in (*own.items(), (_OPEN, _OPEN)):
        start = text.find(value)
        while start >= 0:
            end = start + len(value)
            is_part = _extends_word(text[start - 1 : start], name) or _extends_word(text[end : end + 1], name)
            if value == _OPEN or not is_part:
                matches.append((start, -len(value), name))
            start = text.find(value, start + 1)
    parts, end = list[str](), 0
    for start, negative_length, name in sorted(matches):
        if start >= end:
            parts += [text[end:start], _OPEN, name, _CLOSE]
            end = start - negative_length
    return "".join((*parts, text[end:]))


def _extends_word(neighbor: str, name: str) -> bool:
    """Return whether the character before or after a value shows that the value is only part of a longer word.

    ``neighbor`` is this character, or "" at the start or end of the text.
    """
    return (neighbor.isascii() and neighbor.isalnum()) or (
        name == _NAME and (neighbor.isalnum() or neighbor in ("_", "-"))
    )


def find_own_values(
    old: Decision | None, new: Decision | None, old_decisions: Decisions | None, new_decisions: Decisions
) -> tuple[dict[str, str], dict[str, str]]:
    """Return two mappings from a server's own values to placeholder names: one for the old, one for the new commit."""
    before = dict(_list_document_values(old, old_decisions)) if old is not None and old_decisions is not None else {}
    after = dict(_list_document_values(new, new_decisions)) if new is not None else {}
    if old is not None and new is not None:
        kept = before.items() & after.items()
        before = {value: name for value, name in before.items() if (value, name) in kept}
        after = {value: name for value, name in after.items() if (value, name) in kept}
    return before | dict(_list_derived_values(old)), after | dict(_list_derived_values(new))


def _list_document_values(decision: Decision, decisions: Decisions) -> Iterator[tuple[str, str]]:
    """Yield the values that belong to this server or to its site, each with its placeholder name.

    If two values are equal, the later name wins.
    """
    network = decisions.networks.get(decision.server)
    for number, address in enumerate(network.addresses if network else ()):
        yield address, f"address {number}"
    for number, mac in enumerate(decision.macs):
        yield mac, f"MAC {number}"
        yield mac.replace("-", ":"), f"MAC {number}:"
    if decision.base_url != decisions.base_url:  # if the base URLs are equal, all servers share the base URL
        yield decision.base_url, "base URL"
    yield decision.uuid, "UUID"
    yield decision.server, _NAME


def _list_derived_values(decision: Decision | None) -> Iterator[tuple[str, str]]:
    """Yield the digests that depend on a server's own values, each with its placeholder name."""
    if decision is None:
        return
    for boot in decision.boots:
        yield report_token(decision.uuid, decision.provision, boot.image), f"token of {boot.image}"
        if boot.user_data is not None:
            yield boot.user_data.digest, _DIGEST


# User data without secrets


_ARGUMENT: Final = "kernel argument "
_DECODED: Final = "decoded from base64"
_DATA_URL: Final = "data:;base64,"  # the form that the template filter data_url writes
# an escaped line end inside a string, except at the end of the string
_LINE_END: Final = re.compile(r'(?<!\\)(?:\\\\)*\\n(?!")')


def lay_out_user_data(boot: Boot) -> Boot:
    """Return the boot with its JSON user data formatted on several lines."""
    return _change_files(boot, lambda text: _lay_out_json(text, str))


def hide_secrets(boot: Boot) -> Boot:
    """Return the boot with its JSON user data on several lines, and with HIDDEN instead of possible secrets."""
    boot = _change_files(boot, lambda text: hide_secret_lines(_lay_out_json(text, hide_secret_lines)))
    boot = replace(boot, entries={name: hide_secret_lines(text) for name, text in boot.entries.items()})
    hidden = {leak.location.removeprefix(_ARGUMENT) for leak in find_leaks(boot)}
    arguments = []
    for argument in boot.kernel_arguments:
        name = argument.partition("=")[0]
        arguments.append(f"{name}=HIDDEN" if name in hidden else argument)
    return replace(boot, kernel_arguments=tuple(arguments))


def _change_files(boot: Boot, change: Callable[[str], str]) -> Boot:
    if (user_data := boot.user_data) is None:
        return boot
    files = {name: change(text) for name, text in user_data.files.items()}
    return replace(boot, user_data=replace(user_data, files=files))


def hide_decision_secrets(decision: Decision) -> Decision:
    """Return the decision without values that look like secrets."""
    policy = decision.policy
    if policy is not None and policy.boot is not None:
        policy = replace(policy, boot=hide_secrets(policy.boot))
    maintenances = tuple(
        replace(each, boot=hide_secrets(each.boot)) if each.boot else each for each in decision.maintenances
    )
    return replace(decision, policy=policy, maintenances=maintenances)


def _lay_out_json(text: str, show: Callable[[str], str]) -> str:
    """Format JSON and the JSON texts in it on several lines, so that diffs are readable. Other text stays unchanged.

    The function decodes files in data URLs, and applies ``show`` to these files and to all other texts in the JSON. If
    ``show`` does not change any text, two inputs have the same result only if they are equal apart from white space in
    the JSON.
    """
    try:
        value = _parse_json(text)
        laid_out = json.dumps(value if _DECODED in text else _decode_texts(value, show), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
    return _LINE_END.sub(r"\g<0>" + "\n", laid_out) + "\n"


def _parse_json(text: str) -> Any:
    """Parse JSON. Raises ValueError for invalid JSON and for duplicate keys, which parsers handle differently."""

    def reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            raise ValueError("an object has a duplicate key")
        return mapping

    return json.loads(text, object_pairs_hook=reject_duplicates)


def _decode_texts(value: Any, show: Callable[[str], str]) -> Any:
    """Return a JSON value with ``show`` applied to its texts, and with each data URL replaced by an object.

    The object contains the decoded content, in which nested data URLs are decoded too. The function does not decode a
    text that already contains such an object.
    """
    if isinstance(value, dict):
        return {key: _decode_texts(each, show) for key, each in value.items()}
    if isinstance(value, list):
        return [_decode_texts(each, show) for each in value]
    if not isinstance(value, str):
        return value
    if not value.startswith(_DATA_URL):
        return show(value)
    encoded = value.removeprefix(_DATA_URL)
    try:
        text = b64decode(encoded, validate=True).decode()
    except ValueError:
        return value
    if b64encode(text.encode()).decode() != encoded or _DECODED in text:
        return value
    if text.startswith("{"):
        with suppress(ValueError):
            return {_DECODED: _decode_texts(_parse_json(text), show)}
    return {_DECODED: show(text)}


def hide_secret_lines(text: str) -> str:
    """Replace the lines of each secret with one line that states the kind of secret."""
    lines = text.split("\n")
    shown: list[str] = []
    done = 0
    for secret in find_secrets(text):
        if secret.first > done:
            shown += [*lines[done : secret.first - 1], f"HIDDEN: looks like {secret.kind}"]
        done = max(done, secret.last)
    return "\n".join([*shown, *lines[done:]])
