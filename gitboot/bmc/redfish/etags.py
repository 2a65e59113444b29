"""ETags of Redfish resources: read them from responses, and list the forms in which a BMC may accept them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

ANY_ETAG: Final = "*"  # a value of If-Match that matches any state of the resource (RFC 9110, 13.1.1)


def _strip_quotes(etag: str) -> str:
    return etag.removeprefix("W/").strip("\"'\\ ")


# The forms of an ETag in If-Match, in the order in which gitboot sends them. gitboot sends each form first with the
# ETag of the header, which DSP0266 requires, and then with the optional @odata.etag of the body. Some BMCs accept only
# @odata.etag, because their header has two pairs of double quotes.
_ETAG_FORMS: Final[tuple[Callable[[str], str], ...]] = (
    # First the ETag as the BMC sent it (RFC 9110, 13.1.1; ansible-collections/community.general pull request 3268).
    str,
    # A strong ETag in one pair of quotes. If-Match uses strong comparison, so some BMCs reject the weak ETags that they
    # sent: openstack/sushy, Connector._etag_handler; ansible-collections/community.general pull request 6434.
    lambda etag: f'"{_strip_quotes(etag)}"',
    # Last an ETag without quotes (stmcginnis/gofish pull request 275; community.general pull request 3296).
    _strip_quotes,
)


def read_etags(header: object, body: object) -> tuple[str, ...]:
    """Return the ETag in the header and the ``@odata.etag`` in the body, without duplicates.

    gitboot ignores ETags with characters that a header cannot contain.
    """
    texts = (str(each).strip() for each in (header, body) if isinstance(each, str | int) and not isinstance(each, bool))
    return tuple(dict.fromkeys(each for each in texts if _strip_quotes(each) and each.isascii() and each.isprintable()))


def list_if_match_values(etags: Iterable[str]) -> Iterator[str | None]:
    """Yield the If-Match values that gitboot tries in turn. None means a request without If-Match.

    If the BMC sent no ETag, the request without If-Match comes first.
    """
    # Some BMCs reject every ETag (ansible-collections/community.general issue 11261), or every If-Match
    # (stmcginnis/gofish pull request 277). sushy's Connector._etag_handler also ends with a request without If-Match.
    known = tuple(etags)
    yield from dict.fromkeys(format_etag(etag) for format_etag in _ETAG_FORMS for etag in known)
    yield from (ANY_ETAG, None) if known else (None, ANY_ETAG)
