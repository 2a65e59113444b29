"""Review as JSON, and the schemas of documents and reviews."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gitboot.jsonio import document, facts
from gitboot.model.json_schema import KINDS, any_document, schema
from gitboot.review.change_groups import Group
from gitboot.review.document_changes import Fate, FieldChange
from gitboot.review.formats import phrases
from gitboot.review.guards import trailer
from gitboot.review.review import Review
from gitboot.review.risks import Risk


def as_json(review: Review) -> str:
    """Return a review as the JSON that `gitboot diff -o json` prints. `diff.schema.json` describes each field."""
    changes, verdict = review.changes, review.verdict
    servers = [
        {
            "server": change.name,
            "before": change.old.server if change.old else None,
            "fate": change.fate,
            "risks": [risk for risk in Risk if risk in change.risks],
            "group": number,
            "old": change.old.digest if change.old else None,
            "new": change.new.digest if change.new else None,
        }
        for number, group in enumerate(review.groups)
        for change in group.servers
    ]
    of_changes: dict[str, Any] = {"counts": None, "bmcs": (), "credentials": ()}
    of_changes |= {"areas": (), "access": (), "images": ()}
    if changes is not None:
        of_changes = {
            "counts": {
                "changed": len(changes.having(Fate.EDITED)),
                "renamed": sum(change.renamed for change in changes.servers),
                "added": len(changes.having(Fate.ADDED)),
                "removed": len(changes.having(Fate.REMOVED)),
                "unchanged": changes.unchanged,
                "images": len(changes.images),
                "overrides": len(changes.of(Risk.OVERRIDE_ONLY)),
            },
            "areas": [{**facts(each), "area": str(each)} for each in changes.areas],
            "access": changes.access,
            "images": [{"image": each.name, "fate": each.fate, "servers": each.in_use} for each in changes.images],
            "bmcs": changes.moved_bmcs,
            "credentials": [
                {"server": each.server, "old": phrases.access(each.old), "new": phrases.access(each.new)}
                for each in (() if changes.first else changes.bmcs)
            ],
        }
    return document(
        **of_changes,
        base={"named": review.base.named, "revision": review.base.revision},
        head={"named": review.head.named, "revision": review.head.revision},
        verdict=review.outcome,
        digest=verdict.digest if verdict else None,
        comparedWithNothing=changes is not None and changes.first,
        limits=verdict.limits if verdict else None,
        trips=[{**facts(each), "acknowledgement": trailer(verdict.digest, each.guard)} for each in verdict.trips]
        if verdict
        else [],
        steps=[{"commit": each.commit, "acknowledgements": each.lines} for each in review.steps],
        unheeded=review.unheeded,
        unknownServers=review.unknown.rendered if review.unknown else None,
        shared=_fields(review.shared.fields) if review.shared else None,
        claims=[{"image": each.image, "author": each.writer, **_coordinates(each.place)} for each in review.claims],
        groups=[_group(each) for each in review.groups],
        servers=sorted(servers, key=lambda each: str(each["server"])),
        documents=[
            {
                "document": each.id.name if each.id.kind == "file" else str(each.id),
                "fate": each.fate,
                "fields": [field.dotted for field in each.fields],
            }
            for each in review.documents_only
        ],
        signers=[
            {"commit": commit, "person": signer.person, "key": signer.key, "forge": signer.is_forge}
            for commit, signer in review.signers
        ],
        problems=review.head.problems,
        baseProblems=review.base.problems if review.base.decisions is None else (),
        reproduce=review.command,
    )


def _group(group: Group) -> dict[str, Any]:
    causes = [
        {
            "cause": str(each),
            "fate": each.fate,
            "documents": each.number,
            "fields": [field.dotted for field in each.fields],
            **_coordinates(each.place),
        }
        for each in group.causes
    ]
    return {
        "causes": causes,
        "risks": group.risks,
        "effects": group.effects,
        "reinstalls": list(map(phrases.reason, group.reinstalls)),
        "unknown": list(map(phrases.unknown, group.unknown)),
        "servers": group.names,
        "example": group.names[0],
        "own": group.own,
        "outlier": group.outlier,
        "fields": _fields(group.fields),
        "rendered": group.rendered,
    }


def _coordinates(place: tuple[str, int, int] | None) -> dict[str, str | int | None]:
    return dict(zip(("path", "line", "column"), place or (None, None, None), strict=True))


def _fields(changes: Iterable[FieldChange]) -> list[dict[str, Any]]:
    return [{"field": each.dotted, "old": each.old, "new": each.new} for each in changes]


@cache
def schemas() -> Mapping[str, str]:
    """Every schema as the text of its file, by file name: of what is written, and of what `gitboot diff` says."""
    made = {f"{kind.__name__}.json": schema(kind) for kind in KINDS}
    made["any.json"] = any_document()
    made["diff.schema.json"] = json.loads(Path(__file__).with_name("diff.schema.json").read_text())
    return {name: json.dumps(made[name], indent=2, sort_keys=True) + "\n" for name in sorted(made)}


def main(arguments: list[str]) -> int:
    """``DIR`` writes the schemas there; ``--check DIR`` says which differ."""
    directory = Path(arguments[-1])
    if "--check" in arguments:
        there = {path.name: path.read_text() for path in directory.glob("*.json")}
        differ = [name for name, text in schemas().items() if there.get(name) != text]
        extra = sorted(there.keys() - schemas().keys())
        for name in differ + extra:
            hint = f"python -m gitboot.review.formats.json {directory}"
            sys.stdout.write(f"{directory / name} is not what the models say: {hint}\n")
        return 1 if differ or extra else 0
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (directory / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
