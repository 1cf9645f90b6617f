"""An S3 bucket as an object store.

Conditional writes are S3's own: ``If-None-Match: *`` and ``If-Match``. A write whose answer was
lost is sent again and may then meet its own first success as a 412; every write therefore
carries a writer id, and a 412 is read back before it counts as a loss. 5xx, 409, 429 and
time-outs are retried with exponential back-off and full jitter (Brooker, "Exponential Backoff
and Jitter", AWS 2015); 401 and 403 are final.
"""

from __future__ import annotations

import math
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    SSLError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError

from foxhunt_pipeline.errors import (
    AccessDeniedError,
    NotFoundError,
    PreconditionError,
    StoreError,
    UnavailableError,
)
from foxhunt_pipeline.stores import base, files
from foxhunt_pipeline.stores.base import Head, Object, check_key, check_prefix, is_key

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")

PART_BYTES = 8 << 20
"""Size of a part, and the size from which objects go in parts; as boto3 has it."""
MAX_PARTS = 10_000
WORKERS = 10
"""Parts in flight; as boto3 has it."""
_WRITER = "writer"
_jitter = random.SystemRandom()
_LONGEST_DELAY = 10.0
_BUSY_STATUS = {408, 409, 429}
_BUSY_CODES = {"RequestTimeout", "SlowDown", "Throttling", "OperationAborted"}
_BROKEN = (BotoConnectionError, HTTPClientError, IncompleteReadError, FlexibleChecksumError)
_DENIED_CODES = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthFailure"}


class S3Store:
    """Objects of ``bucket`` whose keys start with ``prefix``; an etag is the server's.

    A call is tried up to ``attempts`` times; the waits between start at ``delay`` seconds and
    double. The client should not retry by itself.
    """

    def __init__(
        self,
        client: S3Client,
        bucket: str,
        prefix: str = "",
        *,
        attempts: int = 6,
        delay: float = 0.2,
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix}/" if (prefix := check_prefix(prefix)) else ""
        self._attempts = attempts
        self._delay = delay
        self._place = f"s3://{bucket}/{self._prefix} at {client.meta.endpoint_url}"

    def __repr__(self) -> str:
        return f"S3Store({self._place!r})"

    def get(self, key: str) -> Object:
        at = self._at(key)

        def read() -> Object:
            response = self._client.get_object(**at)
            return Object(response["Body"].read(), response["ETag"])

        return self._call(key, read)

    def put_new(self, key: str, data: bytes) -> str:
        return self._put(key, data, {"IfNoneMatch": "*"})

    def replace(self, key: str, data: bytes, etag: str | None) -> str:
        if etag is None:
            return self.put_new(key, data)
        try:
            return self._put(key, data, {"IfMatch": etag})
        except NotFoundError as error:
            raise PreconditionError(
                error.message, remedy="Another process deleted it: read again and decide anew."
            ) from None

    def put_file_new(self, key: str, path: Path) -> bool:
        size = path.stat().st_size
        if self.head(key) is not None:
            return False
        try:
            if size < PART_BYTES:
                self.put_new(key, path.read_bytes())
            else:
                self._upload(key, path, size)
        except PreconditionError:
            return False
        return True

    def fetch(self, key: str, path: Path, *, sha256: str, size: int) -> None:
        origin = f"{key} in {self._place}"
        head = self.head(key)
        if head is None:
            raise self._absent(key)
        files.check(sha256, head.size, sha256=sha256, size=size, origin=origin)
        files.make_folder(path.parent)
        with files.temporary(path.parent) as (file, part):
            self._each_part(size, lambda start, end: self._download(key, file, start, end))
            files.settle(file)
            files.check(files.hash_file(part), size, sha256=sha256, size=size, origin=origin)
            part.replace(path)
        files.sync_folder(path.parent)

    def local_path(self, key: str) -> Path | None:
        check_key(key)
        return None

    def head(self, key: str) -> Head | None:
        at = self._at(key)
        try:
            response = self._call(key, lambda: self._client.head_object(**at))
        except NotFoundError:
            return None
        return Head(key, response["ContentLength"], response["ETag"])

    def list(self, prefix: str) -> Iterator[Head]:
        prefix = check_prefix(prefix)
        found: dict[str, Head] = {}
        page: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._prefix + prefix}
        while page:
            response = self._call(prefix, partial(self._client.list_objects_v2, **page))
            for entry in response.get("Contents", ()):
                key = entry["Key"].removeprefix(self._prefix)
                if is_key(key) and (not prefix or f"{key}/".startswith(f"{prefix}/")):
                    found[key] = Head(key, entry["Size"], entry["ETag"])
            more = response.get("NextContinuationToken") if response["IsTruncated"] else None
            page = page | {"ContinuationToken": more} if more else {}
        yield from (found[key] for key in sorted(found))

    def delete(self, key: str) -> None:
        at = self._at(key)
        self._call(key, lambda: self._client.delete_object(**at))

    def probe(self) -> None:
        base.probe(self, self._place)

    def _at(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": self._prefix + check_key(key)}

    def _put(self, key: str, data: bytes, condition: dict[str, Any]) -> str:
        at, writer = self._at(key), uuid.uuid4().hex

        def put() -> str:
            response = self._client.put_object(
                **at, Body=data, Metadata={_WRITER: writer}, **condition
            )
            return response["ETag"]

        return self._settled(key, writer, put)

    def _settled(self, key: str, writer: str, write: Callable[[], str]) -> str:
        """The etag that a conditional write made, also where the answer to it was lost."""
        try:
            return self._call(key, write)
        except (PreconditionError, NotFoundError):
            at = self._at(key)
            try:
                found = self._call(key, lambda: self._client.head_object(**at))
            except NotFoundError:
                found = None
            if found is not None and found["Metadata"].get(_WRITER) == writer:
                return found["ETag"]
            raise

    def _upload(self, key: str, path: Path, size: int) -> None:
        at, writer = self._at(key), uuid.uuid4().hex
        summed = self._client.meta.config.request_checksum_calculation == "when_supported"  # type: ignore[attr-defined]
        algorithm: dict[str, Any] = {"ChecksumAlgorithm": "CRC32"} if summed else {}
        upload = self._call(
            key,
            lambda: self._client.create_multipart_upload(
                **at, Metadata={_WRITER: writer}, **algorithm
            ),
        )["UploadId"]
        try:
            with path.open("rb") as file:

                def send(start: int, end: int) -> dict[str, Any]:
                    number = start // _part_bytes(size) + 1
                    body = os.pread(file.fileno(), end - start, start)
                    sent: dict[str, Any] = self._client.upload_part(
                        **at, UploadId=upload, PartNumber=number, Body=body, **algorithm
                    )  # type: ignore[assignment]
                    tags = ("ETag", "ChecksumCRC32") if summed else ("ETag",)
                    return {"PartNumber": number} | {t: sent[t] for t in tags if t in sent}

                parts = self._each_part(
                    size, lambda start, end: self._call(key, lambda: send(start, end))
                )

            def complete() -> str:
                return self._client.complete_multipart_upload(
                    **at, UploadId=upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
                )["ETag"]

            self._settled(key, writer, complete)
        except BaseException:
            with suppress(StoreError):
                self._call(key, lambda: self._client.abort_multipart_upload(**at, UploadId=upload))
            raise

    def _download(self, key: str, file: BinaryIO, start: int, end: int) -> None:
        at = self._at(key)
        data = self._call(
            key,
            lambda: self._client.get_object(**at, Range=f"bytes={start}-{end - 1}")["Body"].read(),
        )
        os.pwrite(file.fileno(), data, start)

    def _each_part(self, size: int, work: Callable[[int, int], T]) -> list[T]:  # type: ignore[valid-type]
        step = _part_bytes(size)
        starts = range(0, size, step)
        ends = [min(start + step, size) for start in starts]
        pool = ThreadPoolExecutor(max_workers=min(WORKERS, max(1, len(starts))))
        try:
            return [*pool.map(work, starts, ends)]
        finally:
            pool.shutdown(cancel_futures=True)

    def _call(self, key: str, call: Callable[[], T]) -> T:
        for attempt in range(self._attempts):
            if attempt:
                longest = min(_LONGEST_DELAY, self._delay * 2 ** (attempt - 1))
                time.sleep(_jitter.uniform(longest / 2, longest))
            try:
                return call()
            except (ClientError, BotoCoreError) as error:
                fault = self._fault(key, error)
                if not fault.transient:
                    raise fault from None
        raise fault

    def _fault(self, key: str, error: ClientError | BotoCoreError) -> StoreError:
        """The store's error for one of boto's, saying where and what to do, without secrets."""
        where = f"{key or 'The listing'} in {self._place}"
        if isinstance(error, ClientError):
            return self._answered(key, where, error)
        if isinstance(
            error, (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError)
        ):
            return AccessDeniedError(
                f"{where} needs credentials, and the default AWS chain has none that work.",
                remedy="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role.",
            )
        if isinstance(error, SSLError):
            return StoreError(
                f"{where}: the server's certificate is not trusted.",
                remedy="Give the CA certificates in the store's ca_bundle.",
            )
        if isinstance(error, _BROKEN):
            return UnavailableError(
                f"{where}: no whole answer ({type(error).__name__}) in {self._attempts} tries.",
                remedy="Check the endpoint and the network, then run again: that is safe.",
            )
        return StoreError(f"{where}: {error}.", remedy="Check the store's settings.")

    def _answered(self, key: str, where: str, error: ClientError) -> StoreError:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = error.response.get("Error", {}).get("Code", str(status))
        if status in (401, 403) or code in _DENIED_CODES:
            return AccessDeniedError(
                f"{where} is not allowed: {status} {code}.",
                remedy="Check the credentials of the default AWS chain (access key, secret, clock) "
                f"and the policy of bucket {self._bucket} (GetObject, PutObject, DeleteObject, "
                "ListBucket). Nothing was changed.",
            )
        if code == "NoSuchBucket":
            return StoreError(
                f"There is no bucket {self._bucket} at {self._client.meta.endpoint_url}.",
                remedy="Create it, or correct the store's url and endpoint_url.",
            )
        if code == "NoSuchUpload":
            return NotFoundError(
                f"{where}: its upload in parts was aborted by another process or a lifecycle rule.",
                remedy="Run again: that is safe.",
            )
        if status == 404:
            return self._absent(key)
        if status == 412:
            return PreconditionError(
                f"{where} is there already, or is not the version expected.",
                remedy="Another writer was first: read it again and decide anew.",
            )
        if status >= 500 or status in _BUSY_STATUS or code in _BUSY_CODES:
            return UnavailableError(
                f"{where}: the server answered {status} {code}, in {self._attempts} tries.",
                remedy="Wait for the server to recover, then run again: that is safe.",
            )
        return StoreError(
            f"{where}: the server answered {status} {code}.",
            remedy="Check region, addressing_style and checksum of the store's settings.",
        )

    def _absent(self, key: str) -> NotFoundError:
        return NotFoundError(
            f"There is no {key} in {self._place}.",
            remedy="Check that the store's url is the right one, or build it again.",
        )


def _part_bytes(size: int) -> int:
    return max(PART_BYTES, math.ceil(size / MAX_PARTS))
