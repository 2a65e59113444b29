"""A real cloud-init judges documents: Debian's, unpacked and run as a module, in a folder of its own.

    python cloud_init_verdicts.py FOLDER < DOCUMENTS

It reads a JSON list of documents, and writes the warnings of cloud-init about each. No script is run, and no URL is
fetched.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any


class _Warnings(logging.Handler):
    """Keeps what cloud-init reports."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def judge(folder: str, text: str) -> list[str]:
    """What cloud-init reports while it reads this user data."""
    from cloudinit import handlers, helpers, subp, url_helper, user_data
    from cloudinit.handlers.boot_hook import BootHookPartHandler
    from cloudinit.handlers.cloud_config import CloudConfigPartHandler
    from cloudinit.handlers.jinja_template import JinjaTemplatePartHandler
    from cloudinit.handlers.shell_script import ShellScriptPartHandler
    from cloudinit.handlers.shell_script_by_frequency import ShellScriptByFreqPartHandler

    def fetch_nothing(*_: Any, **__: Any) -> Any:
        return url_helper.StringResponse(b"#!/bin/sh\n")

    user_data.read_file_or_url = fetch_nothing
    subp.subp = lambda *_, **__: ("", "")
    warnings = _Warnings()
    root = logging.getLogger()
    root.handlers = [warnings]
    paths = helpers.Paths({"cloud_dir": folder, "run_dir": folder})
    Path(folder, "instance-data-sensitive.json").write_text(json.dumps({"v1": {"local_hostname": "web01"}}))
    Path(folder, "instance-data.json").write_text(json.dumps({"v1": {"local_hostname": "web01"}}))
    options: dict[str, Any] = {"paths": paths, "datasource": None}
    paths.get_ipath = lambda name=None: str(Path(folder, name or ""))
    config, script, hook = (
        each(**options) for each in (CloudConfigPartHandler, ShellScriptPartHandler, BootHookPartHandler)
    )
    known = [config, script, hook, JinjaTemplatePartHandler(**options, sub_handlers=[config, script, hook])]
    known += [ShellScriptByFreqPartHandler(each, **options) for each in ("always", "once-per-instance", "once")]
    by_type = helpers.ContentHandlers()
    for each in known:
        by_type.register(each, overwrite=False)
        handlers.call_begin(each, None, "once-per-instance")
    message = user_data.UserDataProcessor(paths).process(text)
    data = {"handlers": by_type, "handlerdir": folder, "data": None, "frequency": "once-per-instance"}
    handlers.walk(message, handlers.walker_callback, data={**data, "handlercount": 0, "excluded": []})
    return warnings.found


def main() -> None:
    sys.path.append(sys.argv[1])  # for part handlers
    verdicts = []
    for text in json.load(sys.stdin):
        try:
            verdicts.append(judge(sys.argv[1], text))
        except (AttributeError, TypeError, ValueError) as error:  # which stop cloud-init
            verdicts.append([repr(error)])
    sys.stdout.write(json.dumps(verdicts))


if __name__ == "__main__":
    main()
