"""gitboot.review.formats.json_from_model_schema."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from gitboot.model.json_schema import _DIALECT, KINDS, any_document, schema
from gitboot.review.formats.json import DiffFacts


@cache
def schemas() -> Mapping[str, str]:
    """Every schema as the text of its file, by file name: of what is written, and of what `gitboot diff` says."""
    made = {f"{kind.__name__}.json": schema(kind) for kind in KINDS}
    made["any.json"] = any_document()
    made["diff.schema.json"] = {"$schema": _DIALECT, **TypeAdapter(DiffFacts).json_schema()}
    return {name: json.dumps(made[name], indent=2, sort_keys=True) + "\n" for name in sorted(made)}


def main(arguments: list[str]) -> int:
    """``DIR`` writes the schemas there; ``--check DIR`` says which differ."""
    directory = Path(arguments[-1])
    if "--check" in arguments:
        differ = [name for name, text in schemas().items() if _read(directory / name) != text]
        extra = sorted({path.name for path in directory.glob("*.json")} - schemas().keys())
        for name in differ + extra:
            hint = f"python -m gitboot.model.json_schema {directory}"
            sys.stdout.write(f"{directory / name} is not what the models say: {hint}\n")
        return 1 if differ or extra else 0
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (directory / name).write_text(text)
    return 0


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
