"""What endpoints on other hosts forward to this one: what they have recorded, and what they ask before they give."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from starlette.types import Receive, Scope

from gitboot.canonical import canonical
from gitboot.observe import batches, left, soles
from gitboot.observe.batches import ForwardedBatch, Writer
from gitboot.observe.elsewhere import Unrecordable
from gitboot.observe.observation import Observation
from gitboot.observe.spool import forgotten, identity, is_identity, line_of, parse
from gitboot.render.paths import ContentType
from gitboot.serve.body import whole_of
from gitboot.serve.giving import Recorder
from gitboot.serve.named import query_of
from gitboot.serve.operators import Tokens, bearer
from gitboot.serve.reply import CONFLICT, HEARD, NO_TOKEN, NOT_FOUND, NOT_NOW, UNCACHED, Reply, file_reply, refused

FORWARDED: Final = "/v1/spool/"
_MOST_QUESTION_BYTES: Final = 64 * 1024


class SpoolRecorder(Recorder, Protocol):
    """Who records in a spool of this host, too."""

    @property
    def folder(self) -> Path:
        """That spool."""


class Forwarded:
    """Answers who shows a token; whoever has one can say what was fetched, as who may write into the spool can."""

    def __init__(self, recorder: SpoolRecorder, tokens: Tokens) -> None:
        self._recorder, self._folder, self._tokens = recorder, recorder.folder, tokens

    async def hear(self, scope: Scope, receive: Receive) -> Reply:
        """The reply to a request below `FORWARDED`."""
        token = bearer(scope["headers"])
        if token is None or not self._tokens.has(token):
            return NO_TOKEN
        verb, _, rest = scope["path"].removeprefix(FORWARDED).partition("/")
        most_bytes = {"batch": batches.MOST_BYTES, "left": left.MOST_BYTES}.get(verb, _MOST_QUESTION_BYTES)
        if isinstance(content := await whole_of(receive, most_bytes), Reply):
            return content
        try:
            match verb:
                case "batch":
                    return await self._batch(rest, query_of(scope["query_string"]), content)
                case "left":
                    return await self._left(rest, content)
                case "sole" if not rest:
                    return await self._sole(query_of(scope["query_string"]))
                case "given" | "reported" | "record" if not rest:
                    return await self._asked(verb, query_of(scope["query_string"]), content)
        except (ValueError, RecursionError) as error:
            return refused(str(error))
        except (OSError, Unrecordable):
            return NOT_NOW
        return NOT_FOUND

    async def _batch(self, named: str, query: Mapping[str, str], lines: bytes) -> Reply:
        """The place from which the next batch of SPOOL/FILE has to be."""
        begin = query.get("begin", "")
        if not begin.isdecimal() or len(begin) > _LONGEST_PLACE:
            raise ValueError(f"{begin!r} is no place in a file of a spool")
        if lines and not lines.endswith(b"\n"):
            raise ValueError("a batch is of whole lines")
        batch, others = (
            ForwardedBatch(Writer.parse(named), int(begin), lines),
            frozenset(query.get("files", "").split(",")),
        )
        return _json({"place": await asyncio.to_thread(batches.accept, self._folder, batch, others)})

    async def _left(self, named: str, content: bytes) -> Reply:
        """Whether there was room for what an endpoint has left: a report, or unknown machines."""
        spool, _, name = named.partition("/")
        is_left = await asyncio.to_thread(left.accept, self._folder, spool, name, content)
        return HEARD if is_left else CONFLICT

    async def _sole(self, query: Mapping[str, str]) -> Reply:
        """Whether a site is the asker's alone; and what was given so far, of which it goes on."""
        site, spool, folder = query.get("site", ""), query.get("spool", ""), self._folder
        if not site or not is_identity(spool):
            raise ValueError("a site, and the identity of a spool, are wanted")
        if "release" in query:
            await asyncio.to_thread(soles.release, folder, site, spool)
            return HEARD
        if not await asyncio.to_thread(soles.claim, folder, site, spool):
            return _json({"given": None})
        given = await asyncio.to_thread(lambda: b"".join(soles.given_lines(folder)).decode())
        return _json({"given": given, "giver": identity(folder), "forgotten": forgotten(folder)})

    async def _asked(self, verb: str, query: Mapping[str, str], content: bytes) -> Reply:
        recorder = self._recorder
        if verb == "record":
            found = parse(content)
            if not isinstance(found, Observation):
                raise ValueError("that is no observation")
            return HEARD if await recorder.record(found, query.get("giver")) else NOT_NOW
        said: dict[str, Any]
        match verb, json.loads(content):
            case "given", {"server": str(server), "offer": str(offer), "report": str() | None as report}:
                given = await recorder.given(server, offer, report)
                said = {"given": given and {"first": line_of(given.first).decode(), "isOver": given.is_over}}
            case "reported", {"server": str(server), "token": str(token)}:
                said = {"reported": await recorder.reported(server, token)}
            case _:
                raise ValueError("that is no question")
        about = {"giver": recorder.giver, "forgotten": recorder.forgotten, "soles": dict(recorder.soles)}
        return _json({**said, **about})


_LONGEST_PLACE: Final = 12  # digits


def _json(facts: Mapping[str, Any]) -> Reply:
    return file_reply(canonical(facts) + b"\n", ContentType.JSON, UNCACHED)
