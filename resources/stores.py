"""Opens the store that a configuration names. dagster-aws takes a second to import, and a folder
needs none of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from foxhunt_pipeline.config import StoreConfig
from foxhunt_pipeline.errors import ConfigError
from foxhunt_pipeline.stores.base import ObjectStore, check_prefix
from foxhunt_pipeline.stores.folder import FolderStore


def open_store(config: StoreConfig) -> ObjectStore:
    """The folder or the S3 prefix that ``config.url`` names. Nothing is read or written yet;
    :meth:`~foxhunt_pipeline.stores.base.ObjectStore.probe` tries it.

    Raises :class:`~foxhunt_pipeline.errors.ConfigError` for a url that names neither.
    """
    if not config.is_s3:
        if not config.url or "://" in config.url:
            raise ConfigError(
                f"The store's url {config.url!r} is neither a folder nor s3://bucket/prefix.",
                remedy="Give a folder's path, or s3://bucket/prefix.",
            )
        return FolderStore(Path(config.url).expanduser())
    from foxhunt_pipeline.stores.s3 import S3Store

    return S3Store(*open_client(config))


def open_client(config: StoreConfig) -> tuple[Any, str, str]:
    """(boto3 S3 client, bucket, prefix) of ``s3://bucket/prefix``.

    Raises :class:`~foxhunt_pipeline.errors.ConfigError` for a url that names no bucket.
    """
    bucket, _, prefix = config.url.removeprefix("s3://").partition("/")
    if not bucket:
        raise ConfigError(
            f"The store's url {config.url!r} names no bucket.", remedy="Give s3://bucket/prefix."
        )
    if config.endpoint_url and urlsplit(config.endpoint_url).username:
        raise ConfigError(
            "The store's endpoint_url holds credentials.",
            remedy="Take them out; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead.",
        )
    if config.ca_bundle and not Path(config.ca_bundle).expanduser().is_file():
        raise ConfigError(
            f"The store's ca_bundle {config.ca_bundle} is not a file.",
            remedy="Give the PEM file of the CA certificates.",
        )
    from resources.s3 import S3StoreResource

    resource = S3StoreResource(
        endpoint_url=config.endpoint_url,
        region_name=config.region,
        addressing_style=config.addressing_style,
        checksum=config.checksum,
        ca_bundle=str(Path(config.ca_bundle).expanduser()) if config.ca_bundle else None,
    )
    return resource.get_client(), bucket, check_prefix(prefix)
