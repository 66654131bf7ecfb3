"""Who looks at the page: the token in its cookie, and the mark of forms that are its own.

It must not decide what a token permits: the daemon does.
"""

from __future__ import annotations

import hmac
import secrets
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from opsq.errors import NotPermitted, UsageError
from opsq.gateway.access import token_of
from opsq.gateway.bodies import whole_body

COOKIE, SECURE_COOKIE = "opsq-token", "__Host-opsq-token"
FORM_LIMIT_BYTES, FIELDS_LIMIT = 64 << 10, 20
_SECRET = secrets.token_bytes(32)
"""Of this process: forms that an earlier one has sent are refused."""


def cookie_token(request: Request) -> str | None:
    """The token of the cookie."""
    return request.cookies.get(SECURE_COOKIE) or request.cookies.get(COOKIE) or None


def shown_token(request: Request) -> str | None:
    """The token that a browser or program has shown."""
    return token_of(request) or cookie_token(request)


def mark_of(request: Request) -> str:
    """What a form must carry that somebody with this cookie sends: no page of another site can know it."""
    return hmac.digest(_SECRET, (cookie_token(request) or "").encode(), "sha256").hex()


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form that this page has sent.

    Raises:
        NotPermitted: it comes from elsewhere.
        UsageError: it is none, or too long.
    """
    body = await whole_body(request, FORM_LIMIT_BYTES)
    try:
        fields = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_LIMIT))
    except ValueError as error:
        raise UsageError("That is not a form of this page.") from error
    is_marked = hmac.compare_digest(fields.get("mark", "").encode(), mark_of(request).encode())
    if not is_marked or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise NotPermitted(
            "This form did not come from this page, or from before the gateway was started again.",
            hint="Go back, load the page again, and send it then.",
        )
    return fields


def sign_in(request: Request, answer: Response, token: str) -> None:
    """Have the browser show a token from now on, until it is closed."""
    is_secure = urlsplit(request.headers.get("origin", "")).scheme == "https"
    name = SECURE_COOKIE if is_secure else COOKIE
    answer.set_cookie(name, token, path="/", secure=is_secure, httponly=True, samesite="strict")


def sign_out(answer: Response) -> None:
    """Have the browser forget its token."""
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    answer.delete_cookie(SECURE_COOKIE, path="/", secure=True, httponly=True, samesite="strict")
