"""A real pykickstart judges documents, without following what they include.

    python kickstart_verdicts.py < DOCUMENTS

It reads a JSON list of documents. It writes the error about each document (null: a release accepts it), and the options
of each command.
"""

from __future__ import annotations

import json
import sys
import warnings

RELEASES = ("RHEL7", "RHEL8", "RHEL9", "RHEL10", "F40")


def judge(release: str, text: str) -> str | None:
    from pykickstart.errors import KickstartError
    from pykickstart.parser import KickstartParser
    from pykickstart.version import makeVersion

    parser = KickstartParser(makeVersion(release), followIncludes=False)
    try:
        parser.readKickstartFromString(text)
    except (KickstartError, ValueError, IndexError) as error:
        return repr(error)
    return None


def judge_by_any(text: str) -> str | None:
    """The error of the oldest release, or null as soon as one accepts the document: to make a release is slow."""
    error = None
    for release in reversed(RELEASES):
        if (error := judge(release, text)) is None:
            break
    return error


def list_options() -> dict[str, list[str]]:
    """The options of each command in any of the releases."""
    from pykickstart.version import makeVersion

    found: dict[str, set[str]] = {}
    for release in RELEASES:
        for name, command in makeVersion(release).commands.items():
            actions = command.op._actions if getattr(command, "op", None) is not None else ()
            found.setdefault(name, set()).update(option for each in actions for option in each.option_strings)
    return {name: sorted(options) for name, options in found.items()}


def main() -> None:
    warnings.simplefilter("ignore")  # about commands that a release has deprecated
    verdicts = [judge_by_any(text) for text in json.load(sys.stdin)]
    sys.stdout.write(json.dumps([verdicts, list_options()]))


if __name__ == "__main__":
    main()
