"""`gitboot status`: a running instance at a glance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from gitboot.cli.inputs import Output, output_option, state_option


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@state_option
@output_option("text", "json")
def command(state: Path, outputs: tuple[Output, ...]) -> None:
    """Show what the instance on STATE has accepted and published, and what it is in want of.

    Its conditions say what is the matter, with a reason, a message, and since when.
    """
    from gitboot.state import read_status, running

    status = read_status(state)
    status["process"] = running(state)
    for output in outputs:
        output.write(_as_text(status) if output.format == "text" else json.dumps(status, indent=2, sort_keys=True))


def _as_text(status: dict[str, Any]) -> str:
    from gitboot.cli.table import table

    process = status["process"]
    state = click.style(f"running, process {process}", fg="green") if process else click.style("not running", fg="red")
    problems = status["attempted"]["problems"]
    attempted = str(status["attempted"]["commit"] or "-")
    if problems:
        attempted += f", {len(problems)} problem{'s' if len(problems) > 1 else ''}"
    phases = ", ".join(f"{count} {phase}" for phase, count in status["phases"].items())
    lines = [
        f"gitboot    {state}",
        *([f"ledger     {status['ledger']}"] if status.get("ledger") else []),
        f"applied    {status['applied']['commit'] or '-'}",
        f"attempted  {attempted}",
        f"servers    {sum(status['phases'].values())}{': ' if phases else ''}{phases}",
        *(f"{name:9}  {_counts(status[name])}" for name in ("records", "drift", "bmcs") if status.get(name)),
        f"planned    {_to_the_second(status['plannedAt']) if status['plannedAt'] else 'not since the start'}",
        f"next       {status['nextTransition'] or 'no change without a commit'}",
    ]
    if held := status["attempted"].get("held"):
        lines.insert(3, f"held       {held['digest']} by {', '.join(held['guards'])}")
    lines += [f"    {each['path']}:{each['line']}: {each['code']}: {each['message']}" for each in problems[:10]]
    rows = [
        (
            click.style(each["type"], fg=None if each["status"] else "red"),
            "true" if each["status"] else "false",
            each["reason"],
            _to_the_second(each["since"]),
            each["message"],
        )
        for each in sorted(status["conditions"], key=lambda each: (each["status"], each["type"]))
    ]
    return "\n".join(lines) + "\n\n" + table(("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"), rows)


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in found.items())


def _to_the_second(instant: str) -> str:
    return f"{instant[:19]}Z"
