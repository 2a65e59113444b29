"""gitboot.ledger.schema_from_ledger_sqlite."""

from __future__ import annotations

from gitboot.errors import LedgerError
from gitboot.ledger.schema import VERSION


def too_new(name: str, version: int) -> LedgerError:
    return LedgerError(f"{name}: the ledger is of version {version}, this gitboot knows {VERSION}; use a newer gitboot")
