"""ETags: the values of If-Match with which a BMC may take back the ETag that it sent.

A client sends an ETag back as it received it (RFC 9110, 13.1.1; DSP0266, "ETags"). BMCs exist that refuse exactly
that. `ETAG_FORMS` lists what they accept instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

ANY: Final = "*"  # any state of the resource, RFC 9110, 13.1.1


@dataclass(frozen=True, kw_only=True, slots=True)
class EtagForm:
    """One way to write an ETag in If-Match."""

    name: str
    source: str  # who reports BMCs that accept this form
    write: Callable[[str], str]  # the ETag as the BMC sent it -> the value of If-Match


def _opaque(etag: str) -> str:
    """Return what an ETag has between its quotes, however many there are."""
    return etag.removeprefix("W/").strip("\"'\\ ")


# In the order in which gitboot sends them. Each form is written for the ETag of the header, then for that of the body.
ETAG_FORMS: Final = (
    # The header comes first: DSP0266 requires it, and @odata.etag is optional. Some BMCs accept only @odata.etag:
    # their header has the quotes twice (pull request 3268).
    EtagForm(
        name="as the BMC sent it",
        source="RFC 9110, 13.1.1; ansible-collections/community.general pull request 3268",
        write=lambda etag: etag,
    ),
    # If-Match is compared strongly, so some BMCs refuse the weak ETags that they send themselves.
    EtagForm(
        name="strong, in one pair of quotes",
        source="RFC 9110, 13.1.1; openstack/sushy, Connector._etag_handler;"
        " ansible-collections/community.general pull request 6434",
        write=lambda etag: f'"{_opaque(etag)}"',
    ),
    EtagForm(
        name="without quotes",
        source="stmcginnis/gofish pull request 275; ansible-collections/community.general pull request 3296",
        write=_opaque,
    ),
)


def read_etags(header: object, body: object) -> tuple[str, ...]:
    """Return the ETag of a header and ``@odata.etag`` of its body, each once, as far as If-Match can have them.

    A value with other characters than printable ASCII is no ETag: no header could have it.
    """
    texts = (str(each).strip() for each in (header, body) if isinstance(each, str | int) and not isinstance(each, bool))
    return tuple(dict.fromkeys(each for each in texts if _opaque(each) and each.isascii() and each.isprintable()))


def if_match_values(etags: Iterable[str]) -> Iterator[str | None]:
    """Return the values of If-Match to try in turn; None stands for a request without If-Match.

    A BMC that sent no ETag gets a request without If-Match first: there is no ETag to compare.
    """
    # Some BMCs refuse every ETag (ansible-collections/community.general issue 11261), or every If-Match
    # (stmcginnis/gofish pull request 277). sushy's Connector._etag_handler ends without If-Match, too.
    known = tuple(etags)
    yield from dict.fromkeys(form.write(etag) for form in ETAG_FORMS for etag in known)
    yield from (ANY, None) if known else (None, ANY)


def is_conditional(if_match: str | None) -> bool:
    """Return whether the BMC refuses a request with this If-Match if the resource has changed."""
    return if_match not in (ANY, None)
