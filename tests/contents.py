"""Contents as tests make them in one call."""

import os
from collections.abc import Iterable

from opsq.content.content_store import Store
from opsq.content.content_writer import ContentWriter
from opsq.content.manifest import Content
from opsq.content.splitter import Splitting


def in_place(
    store: Store, folder: str, paths: Iterable[str | os.PathLike[str]], splitting: Splitting, *, is_durable: bool = True
) -> Content:
    """Files as content, without copying any bytes."""
    with ContentWriter(store, folder, is_durable=is_durable) as writer:
        for path in paths:
            writer.add_in_place(path, splitting)
        return writer.finish()
