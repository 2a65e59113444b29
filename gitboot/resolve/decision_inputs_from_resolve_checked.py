"""gitboot.resolve.decision_inputs_from_resolve_checked."""

from __future__ import annotations

from gitboot.model.boot_policy import BootProfile


def templates_of(profile: BootProfile) -> tuple[str, ...]:
    """The files of which a profile's boot is made."""
    spec = profile.spec
    files = (*(spec.user_data.templates if spec.user_data else ()), spec.templates.ipxe, spec.templates.grub)
    return tuple(path for path in files if path is not None)
