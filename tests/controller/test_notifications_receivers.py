"""The file that names receivers: what it may say, and that nothing of its secrets is said in an error."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gitboot.controller.notifications import Level, read_receivers
from gitboot.errors import UsageError
from tests.helpers.http_peers import notify_file, write_private

URL = "https://hooks.test/very-secret"


def test_it_says_who_is_sent_what(tmp_path: Path) -> None:
    write_private(tmp_path / "slack.url", "slack://very/secret\n")
    file = notify_file(
        tmp_path,
        oncall=f'webhook = "{URL}"\nlevel = "info"\nsites = ["fra1"]\nfold-minutes = 0.5',
        chat='apprise-file = "slack.url"',
    )
    chat, oncall = read_receivers(file)
    assert (chat.name, chat.url, chat.secret, chat.level) == ("chat", "slack://very/secret", None, Level.WARNING)
    assert (oncall.url, oncall.level, oncall.sites) == (URL, Level.INFO, frozenset({"fra1"}))
    assert (oncall.fold, chat.fold) == (timedelta(seconds=30), timedelta(minutes=10))
    assert "secret" not in repr(chat).replace("secret=", "") and "correct" not in repr(oncall)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (f'webhok = "{URL}"', "did you mean webhook"),
        ("level = 'info'", "expected webhook or apprise"),
        (f'webhook = "{URL}"\napprise = "x://y"', "expected webhook or apprise"),
        (f'webhook = "{URL}"\nwebhook-file = "hook.secret"', "one of webhook and webhook-file"),
        ('webhook = "http://hooks.test/very-secret"', "expected an https URL"),
        ('webhook = "https://user:very-secret@hooks.test/"', "expected an https URL"),
        ('webhook = "https://[very-secret"', "expected an https URL"),
        ("webhook = 7", "webhook: expected a URL"),
        (f'webhook = "{URL}"\nlevel = "loud"', "level: expected info or warning"),
        (f'webhook = "{URL}"\nsites = "fra1"', "sites: expected a list"),
        (f'webhook = "{URL}"\nfold-minutes = true', "fold-minutes: expected a number"),
        ('webhook-file = "nowhere"', "nowhere cannot be read"),
        ('apprise = "slack://very-secret"\nsecret-file = "hook.secret"', "secret-file signs a webhook"),
        ('webhook = "very-secret', "is no TOML"),
    ],
)
def test_what_is_wrong_is_said_without_a_secret(tmp_path: Path, said: str, error: str) -> None:
    with pytest.raises(UsageError, match=error) as raised:
        read_receivers(notify_file(tmp_path, oncall=said))
    assert "very-secret" not in str(raised.value) and raised.value.__cause__ is None


@pytest.mark.parametrize("name", ["notify.toml", "hook.secret"])
def test_nobody_else_may_read_it(tmp_path: Path, name: str) -> None:
    file = notify_file(tmp_path, oncall=f'webhook = "{URL}"')
    (tmp_path / name).chmod(0o644)
    with pytest.raises(UsageError, match=f"chmod 600 {tmp_path / name}"):
        read_receivers(file)


def test_a_webhook_is_signed_by_a_secret_that_cannot_be_guessed(tmp_path: Path) -> None:
    file = notify_file(tmp_path, oncall=f'webhook = "{URL}"')
    write_private(tmp_path / "hook.secret", "short")
    with pytest.raises(UsageError, match="16 characters"):
        read_receivers(file)
    write_private(file, f'[receivers.oncall]\nwebhook = "{URL}"')
    with pytest.raises(UsageError, match="needs secret-file"):
        read_receivers(file)
