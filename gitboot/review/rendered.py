"""Unified diffs of what machines fetch: each boot rendered as in its phase, without a clock and without records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import unified_diff
from typing import Final

from gitboot.model.fleet import Output
from gitboot.model.policy import NetworkBoot
from gitboot.phrases import more
from gitboot.plan import Boot, BootPlan, Cause, Decision, Phase
from gitboot.render import grub, ipxe
from gitboot.render.tree import File
from gitboot.resolve import Decisions
from gitboot.review.hidden import fit_to_show

_CONTEXT: Final = 2  # lines around each difference
_LONGEST: Final = 400  # lines of one diff; more is not read; how much more is said

Texts = dict[str, str]  # by name: entry, user-data


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedDiff:
    """How one file that a machine fetches differs."""

    boot: str  # BootPolicy, Maintenance/memory-test, unknown servers
    file: str  # boot.ipxe, config.ign
    lines: tuple[str, ...]  # of a unified diff, without line ends


def rendered_diffs(
    old_decisions: Decisions | None, old: Decision | None, new_decisions: Decisions, new: Decision | None
) -> tuple[RenderedDiff, ...]:
    """Every file of one server that differs, boot by boot."""
    before = _boots(old_decisions, old) if old_decisions and old else {}
    after = _boots(new_decisions, new) if new else {}
    return tuple(_diffs(before, after))


def unknown_diffs(old: Decisions | None, new: Decisions) -> tuple[RenderedDiff, ...]:
    """How what unknown machines fetch differs."""
    return tuple(_diffs({_UNKNOWN: _unknown(old)} if old else {}, {_UNKNOWN: _unknown(new)}))


def shared_diffs(old: Decisions | None, new: Decisions) -> tuple[RenderedDiff, ...]:
    """How differs what every machine begins with."""
    return tuple(_diffs({_SHARED: _shared(old)} if old else {}, {_SHARED: _shared(new)}))


_UNKNOWN: Final = "unknown servers"
_SHARED: Final = "all machines"


def _diffs(old: dict[str, Texts], new: dict[str, Texts]) -> Iterator[RenderedDiff]:
    for boot in dict.fromkeys((*old, *new)):
        before, after = old.get(boot, {}), new.get(boot, {})
        for file in sorted(before.keys() | after.keys()):
            lines = tuple(_diff(before.get(file), after.get(file), file))
            if lines:
                yield RenderedDiff(boot=boot, file=file, lines=lines)


def _diff(old: str | None, new: str | None, file: str) -> Iterator[str]:
    was, is_now = (text.splitlines() if text is not None else [] for text in (old, new))
    before, after = (file if text is not None else "/dev/null" for text in (old, new))
    lines = list(unified_diff(was, is_now, before, after, n=_CONTEXT, lineterm=""))
    yield from lines[:_LONGEST]
    if len(lines) > _LONGEST:
        yield f"… {more(len(lines) - _LONGEST, 'line')}"


def _boots(decisions: Decisions, decision: Decision) -> dict[str, Texts]:
    """What a server fetches, for each boot from the network that it may make."""
    found: dict[str, Texts] = {}
    policy = decision.policy
    if policy is not None and policy.boot is not None and policy.network_boot is not NetworkBoot.NEVER:
        cause = Cause.ALWAYS if policy.network_boot is NetworkBoot.ALWAYS else Cause.PENDING
        plan = _plan(decision, policy.boot, Phase.NETWORK, cause, policy=policy.policy)
        found["BootPolicy"] = _texts(decisions, decision, plan)
    for each in decision.maintenances:
        if each.boot is not None:
            plan = _plan(decision, each.boot, Phase.MAINTENANCE, Cause.MAINTENANCE, maintenance=each.name)
            found[f"Maintenance/{each.name}"] = _texts(decisions, decision, plan)
    return found


def _plan(
    decision: Decision,
    boot: Boot,
    phase: Phase,
    cause: Cause,
    *,
    policy: str | None = None,
    maintenance: str | None = None,
) -> BootPlan:
    """A plan that boots ``boot``, whatever the hour."""
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
        boot=fit_to_show(boot),
        user_data=None,
        override=None,
        next_transition=None,
    )


def _texts(decisions: Decisions, decision: Decision, plan: BootPlan) -> Texts:
    texts = {}
    if Output.IPXE in decisions.outputs:
        texts["boot.ipxe"] = _entry(dict(ipxe.render(decision, plan)), "boot.ipxe")
    elif Output.GRUB in decisions.outputs:
        texts["grub.cfg"] = _entry(dict(grub.render(decision, plan)), "grub.cfg")
    if plan.boot is not None and plan.boot.user_data is not None:
        texts |= plan.boot.user_data.files
    if plan.boot is not None and "grub" in plan.boot.entries:  # an entry of one's own says what nothing else does
        texts["grub.cfg"] = _entry(dict(grub.render(decision, plan)), "grub.cfg")
    return texts


def _entry(files: dict[str, File], name: str) -> str:
    """An entry without its plan's digest, which differs wherever anything does."""
    found = next(file for path, file in files.items() if path.endswith(f"/{name}"))
    lines = found.content.decode().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("# gitboot plan "))


def _unknown(decisions: Decisions) -> Texts:
    decisions = _fit_to_show(decisions)
    files = dict(ipxe.shared(decisions))
    found = files.get("boot/unknown.ipxe")
    texts = {"unknown.ipxe": found.content.decode()} if found else {}
    for architecture, boot in sorted((decisions.unknown or {}).items()):
        if boot.user_data is not None:
            texts |= {f"{architecture} {name}": text for name, text in boot.user_data.files.items()}
    return texts


def _shared(decisions: Decisions) -> Texts:
    if Output.GRUB not in decisions.outputs:
        return {}
    return {path.removeprefix("boot/"): file.content.decode() for path, file in grub.shared(_fit_to_show(decisions))}


def _fit_to_show(decisions: Decisions) -> Decisions:
    """Decisions without what looks like a secret in what unknown machines boot."""
    if decisions.unknown is None:
        return decisions
    shown = {architecture: fit_to_show(boot) for architecture, boot in decisions.unknown.items()}
    return replace(decisions, unknown=shown)
