"""Give one target of `tests.project.fuzz_targets` bytes without end, guided by what of gitboot they reach: atheris."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

with atheris.instrument_imports(include=["gitboot"]):
    from tests.project.fuzz_targets import TARGETS, WORDS


def main() -> None:
    """``python fuzz/run.py TARGET [OPTION…]``, the options libFuzzer's."""
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: python fuzz/run.py TARGET [OPTION…], TARGET one of {', '.join(TARGETS)}")
    target = sys.argv.pop(1)
    found = ROOT / "fuzz" / "found" / target
    found.mkdir(parents=True, exist_ok=True)
    words = found.parent / "words.dict"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in WORDS))
    defaults = [
        *("-timeout=20", "-rss_limit_mb=2048", "-max_len=4096", f"-dict={words}"),
        *(f"-artifact_prefix={found.parent}/defect-{target}-", str(found), str(ROOT / "fuzz" / "seeds" / target)),
    ]
    atheris.Setup([sys.argv[0], *sys.argv[1:], *defaults], TARGETS[target])
    atheris.Fuzz()


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main()
