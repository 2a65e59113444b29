"""SARIF 2.1.0, as code scanning shows it: OASIS, "Static Analysis Results Interchange Format"."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

from gitboot import __version__
from gitboot.problems.codes import Code, Problem, Severity, with_hint, worst_first
from gitboot.text import printable

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning"}
_CODES: Final = {code.value: code for code in Code}
_LINES: Final = re.compile(r"(\.ya?ml)(?::\d+)+")  # fleet.yaml:12, which a message names


def sarif(problems: Sequence[Problem]) -> str:
    """One run with a result for each problem, and the rules that they go by.

    Paths are relative to the root of the repository. A result's fingerprint says nothing of lines, so it stays
    the same while lines move.
    """
    ordered = worst_first(problems)
    rules = sorted({problem.code for problem in ordered})
    numbers = {code: number for number, code in enumerate(rules)}
    seen: Counter[str] = Counter()
    driver = {
        "name": "gitboot",
        "semanticVersion": __version__,
        "rules": [_rule(code) for code in rules],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(problem, numbers[problem.code], seen) for problem in ordered],
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, sort_keys=True) + "\n"


def _rule(name: str) -> dict[str, Any]:
    """What a code means, as `gitboot explain CODE` says it."""
    code = _CODES[name]
    return {
        "id": code.value,
        "name": code.name.title().replace("_", ""),
        "shortDescription": {"text": code.headline},
        "fullDescription": {"text": code.why},
        "help": {"text": f"{code.why} {code.fix}", "markdown": f"{code.why}\n\n**Fix:** {code.fix}"},
    }


def _result(problem: Problem, rule: int, seen: Counter[str]) -> dict[str, Any]:
    artifact = {"uri": quote(problem.path), "uriBaseId": "%SRCROOT%"}
    region = {"startLine": problem.line, "startColumn": problem.column}
    return {
        "ruleId": str(problem.code),
        "ruleIndex": rule,
        "level": _LEVELS[problem.severity],
        "message": {"text": with_hint(problem)},
        "locations": [{"physicalLocation": {"artifactLocation": artifact, "region": region}}],
        "partialFingerprints": {"primaryLocationLineHash": _fingerprint(problem, seen)},
    }


def _fingerprint(problem: Problem, seen: Counter[str]) -> str:
    """Distinguishes a result from others wherever its line moves; those that read alike are numbered.

    GitHub docs, "SARIF support for code scanning": primaryLocationLineHash is the one that GitHub reads.
    """
    said = _LINES.sub(r"\1", printable(problem.message))
    name = sha256(f"{problem.code}\0{problem.path}\0{said}".encode()).hexdigest()[:16]
    seen[name] += 1
    return f"{name}:{seen[name]}"
