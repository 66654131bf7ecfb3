"""A store in an object storage service (s3, gs, az), through obstore.

This file must not know what the bytes mean, and is the only one that imports obstore. Objects appear only when
complete, and are durable then, so there is nothing to sync; folders exist as long as they contain an object.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import from_url

from opsq.content.content_store import ObjectWriter, Store, Version, check_name
from opsq.content.file_io import Buffer
from opsq.errors import Conflict, ContentMissing, NotPermitted, OpsqError, StoreNotVisible, UsageError
from opsq.units import counted

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion, WritableFile
    from obstore.store import ClientConfig, RetryConfig, S3Config

_UPLOAD_BYTES = 16 << 20
"""Size of the pieces of a multipart upload: the maximum of 10 000 pieces gives objects of up to 160 GB."""
_UPLOADS_LIMIT = 4
_RETRIES_LIMIT = 6
_RETRY_S = 60
_BEHIND_THE_END = "416 Range Not Satisfiable"
_FAILURES = (BaseError, OSError, ValueError)


class CloudStore(Store):
    """Objects below one prefix of a bucket or container.

    Args:
        url: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`.
        options: override the environment (`AWS_…`, `GOOGLE_…`, `AZURE_…`).
        patience_s: how long one call may take, with everything that is tried again.

    Raises:
        UsageError: the URL or an option is wrong.
    """

    def __init__(self, url: str, options: Mapping[str, str], patience_s: float | None = None) -> None:
        super().__init__(url)
        client: ClientConfig = {"allow_http": _speaks_http(options)}
        if patience_s is not None:
            client["timeout"] = timedelta(seconds=patience_s)
        retry_s = _RETRY_S if patience_s is None else patience_s
        retry: RetryConfig = {"max_retries": _RETRIES_LIMIT, "retry_timeout": timedelta(seconds=retry_s)}
        try:
            self._objects = from_url(
                url,
                config=cast("S3Config", dict(options)),  # the same keyword takes the options of all services
                client_options=client,
                retry_config=retry,
            )
        except UnknownConfigurationKeyError as error:
            raise UsageError(f"The store {url} has no such option: {_first_line(error)}") from error
        except _FAILURES as error:
            raise UsageError(f"The store {url} cannot be used: {_first_line(error)}") from error

    def path(self, name: str) -> None:
        check_name(name)

    def create_folder(self, folder: str) -> None:
        if self.modified_at(folder) is not None:
            raise Conflict(
                f"{self.url}/{folder} already exists: content with this request key was written before.",
                hint="Repeat the original request, or submit with a new key.",
            )

    def ensure_folder(self, folder: str) -> None:
        """Do nothing: a folder exists as long as an object is in it."""

    def open_writer(self, name: str, *, is_durable: bool) -> ObjectWriter:
        return _CloudWriter(self, check_name(name))

    def write_object(self, name: str, content: Buffer, *, is_durable: bool) -> None:
        try:
            obstore.put(self._objects, check_name(name), content)
        except _FAILURES as error:
            raise self.failure(name, error) from error

    def read_version(self, name: str) -> tuple[bytes, Version] | None:
        try:
            found = obstore.get(self._objects, check_name(name))
            return found.bytes().to_bytes(), {"e_tag": found.meta["e_tag"], "version": found.meta["version"]}
        except (FileNotFoundError, NotFoundError):
            return None
        except _FAILURES as error:
            raise self.failure(name, error) from error

    def swap_object(self, name: str, content: bytes, version: Version | None) -> Version:
        mode: PutMode = (
            "create"
            if version is None
            else cast("UpdateVersion", {key: mark for key, mark in version.items() if mark is not None})
        )
        try:
            put = obstore.put(self._objects, check_name(name), content, mode=mode, use_multipart=False)
        except (AlreadyExistsError, PreconditionError, NotFoundError, FileNotFoundError) as error:
            raise Conflict(f"{self.url}/{name} is not as it was read.") from error
        except _FAILURES as error:
            raise self.failure(name, error) from error
        return {"e_tag": put["e_tag"], "version": put["version"]}

    def sync_folder(self, folder: str) -> None:
        """Do nothing: a folder exists as long as an object is in it."""

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        if size == 0:
            return b""
        try:
            content = obstore.get_range(self._objects, check_name(name), start=offset, length=size).to_bytes()
        except _FAILURES as error:
            raise self.failure(name, error) from error
        if len(content) < size:
            raise ContentMissing(
                f"{self.url}/{name} ends after {counted(offset + len(content), 'byte')}, but had {offset + size}."
            )
        return content

    def size_bytes(self, name: str) -> int:
        try:
            return obstore.head(self._objects, check_name(name))["size"]
        except _FAILURES as error:
            raise self.failure(name, error) from error

    def delete_folder(self, folder: str) -> None:
        check_name(folder)
        try:
            for batch in obstore.list(self._objects, folder, chunk_size=1000):
                obstore.delete(self._objects, [entry["path"] for entry in batch])
        except FileNotFoundError:
            return
        except _FAILURES as error:
            raise self.failure(folder, error) from error

    def delete_object(self, name: str) -> None:
        try:
            obstore.delete(self._objects, check_name(name))
        except FileNotFoundError:
            return
        except _FAILURES as error:
            raise self.failure(name, error) from error

    def objects(self, folder: str) -> Iterator[str]:
        try:
            entries = obstore.list_with_delimiter(self._objects, check_name(folder))["objects"]
        except FileNotFoundError:
            return
        except _FAILURES as error:
            raise self.failure(folder, error) from error
        yield from (entry["path"].rpartition("/")[2] for entry in entries)

    def folders(self) -> Iterator[str]:
        try:
            prefixes = obstore.list_with_delimiter(self._objects)["common_prefixes"]
        except _FAILURES as error:
            raise self.failure("", error) from error
        yield from (prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes)

    def modified_at(self, folder: str) -> float | None:
        latest: float | None = None
        try:
            for batch in obstore.list(self._objects, check_name(folder), chunk_size=1000):
                latest = max([latest or 0.0, *(entry["last_modified"].timestamp() for entry in batch)])
        except _FAILURES as error:
            raise self.failure(folder, error) from error
        return latest

    def begin(self, name: str) -> WritableFile:
        """Start an upload in pieces."""
        return obstore.open_writer(self._objects, name, buffer_size=_UPLOAD_BYTES, max_concurrency=_UPLOADS_LIMIT)

    def failure(self, name: str, error: Exception) -> OpsqError:
        """Make the exception that explains a failure of the service for `name`."""
        place = f"{self.url}/{name}" if name else self.url
        if isinstance(error, FileNotFoundError):
            return ContentMissing(f"{place} is gone.")
        if _BEHIND_THE_END in str(error):
            return ContentMissing(f"{place} is shorter than it was.")
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            return NotPermitted(
                f"The store refuses {place}: {_first_line(error)}", hint="Check the credentials and their permissions."
            )
        if isinstance(error, InvalidPathError):
            return UsageError(f"{place} is not a valid object name: {_first_line(error)}")
        return StoreNotVisible(
            f"The store does not serve {place}: {_first_line(error)}", hint="Check its endpoint and the network."
        )


class _CloudWriter(ObjectWriter):
    """Uploads one object in pieces while it is written."""

    def __init__(self, store: CloudStore, name: str) -> None:
        self._store = store
        self._name = name
        self._is_open = True
        try:
            self._upload = store.begin(name)
        except _FAILURES as error:
            raise store.failure(name, error) from error

    def write(self, content: Buffer) -> None:
        # obstore keeps a reference, not a copy, until a piece is full: a reused buffer would be uploaded with its new
        # content.
        kept = content if isinstance(content, bytes) else bytes(content)
        try:
            self._upload.write(kept)
        except _FAILURES as error:
            raise self._store.failure(self._name, error) from error

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._upload.close()
        except _FAILURES as error:
            raise self._store.failure(self._name, error) from error

    def abort(self) -> None:
        """Finish the upload and delete its object: pieces of an unfinished upload would be billed for ever."""
        if self._is_open:
            self.close()
            self._store.delete_object(self._name)


def _speaks_http(options: Mapping[str, str]) -> bool:
    """Whether the user chose an endpoint without TLS, or allowed it in the environment."""
    endpoints = [value for key, value in options.items() if "endpoint" in key.lower()]
    if not endpoints:
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL")
        endpoints = [os.environ.get(name, "") for name in names]
    allowed = any(os.environ.get(name, "").lower() in ("true", "1") for name in ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP"))
    return allowed or any(endpoint.startswith("http://") for endpoint in endpoints)


def _first_line(error: Exception) -> str:
    """Return the readable part of an obstore message; the rest is internal state."""
    return str(error).partition("\n")[0].strip()
