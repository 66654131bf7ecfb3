"""Opens a content store by its location: a local folder, or a bucket of an object storage service.

This file must not import either kind at load time: object stores are heavy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from opsq.content.content_store import Store
from opsq.errors import UsageError


def open_store(
    location: str | os.PathLike[str], *, options: Mapping[str, str] | None = None, patience_s: float | None = None
) -> Store:
    """Open a store; nothing is read or written yet.

    Args:
        location: a path or `file:///path` for local files; `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or
            `az://CONTAINER/PREFIX` for object stores.
        options: for object stores, overriding the environment: `endpoint`, `region`, `access_key_id`, …, named as in
            obstore.
        patience_s: for object stores: how long one call may take, with everything that is tried again.

    Raises:
        UsageError: the kind of URL is unknown, or an option is wrong.
    """
    text = os.fspath(location)
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "file", text
    elif scheme == "file":
        if not rest.startswith("/"):
            raise UsageError(f"{text!r} is not a path on this machine: write file:///PATH.")
        if "%" in rest:
            from urllib.parse import unquote_to_bytes

            rest = os.fsdecode(unquote_to_bytes(rest))
    if scheme == "file":
        from opsq.content.local_store import LocalStore

        return LocalStore(rest)
    if scheme in ("s3", "gs", "az"):
        from opsq.content.object_store import CloudStore

        return CloudStore(text, options or {}, patience_s)
    raise UsageError(f"{text!r} is not a content store: use a path, or a file://, s3://, gs:// or az:// URL.")
