"""Opens the store that a configuration names.

S3 goes through dagster-aws. Its ``S3Resource`` has no addressing style, checksum mode or CA
bundle, which MinIO and its kin need, so :class:`S3StoreResource` adds them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from dagster_aws.s3 import S3Resource
from pydantic import Field

from foxhunt_pipeline.config import StoreConfig
from foxhunt_pipeline.errors import ConfigError
from foxhunt_pipeline.stores.base import ObjectStore, check_prefix
from foxhunt_pipeline.stores.folder import FolderStore
from foxhunt_pipeline.stores.s3 import WORKERS, S3Store

CONNECT_SECONDS = 10
READ_SECONDS = 60


class S3StoreResource(S3Resource):
    """``S3Resource`` for S3 and servers that speak its protocol.

    Credentials come from the default AWS chain (variables, profile, role): ``repr`` of a
    Dagster resource shows its fields, so a secret must not be one.
    """

    max_attempts: int = Field(
        default=0, description="Retries by boto3; the store itself retries, with read-back."
    )
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    checksum: Literal["when_supported", "when_required"] = "when_supported"
    ca_bundle: str | None = Field(default=None, description="CA certificates, PEM.")

    def get_client(self) -> Any:
        """A boto3 S3 client.

        Raises :class:`~foxhunt_pipeline.errors.ConfigError` if a secret is among the fields.
        """
        if self.aws_access_key_id or self.aws_secret_access_key or self.aws_session_token:
            raise ConfigError(
                "S3 credentials are given as fields of the resource, which Dagster shows.",
                remedy="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role.",
            )
        return boto3.session.Session(profile_name=self.profile_name).client(
            "s3",
            region_name=self.region_name,
            use_ssl=self.use_ssl,
            verify=self.ca_bundle or self.verify,
            endpoint_url=self.endpoint_url,
            config=Config(
                signature_version=UNSIGNED if self.use_unsigned_session else None,
                retries={"mode": "standard", "max_attempts": self.max_attempts},
                s3={"addressing_style": self.addressing_style},
                request_checksum_calculation=self.checksum,
                response_checksum_validation=self.checksum,
                connect_timeout=CONNECT_SECONDS,
                read_timeout=READ_SECONDS,
                max_pool_connections=2 * WORKERS,
            ),
        )


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
    resource = S3StoreResource(
        endpoint_url=config.endpoint_url,
        region_name=config.region,
        addressing_style=config.addressing_style,
        checksum=config.checksum,
        ca_bundle=str(Path(config.ca_bundle).expanduser()) if config.ca_bundle else None,
    )
    return resource.get_client(), bucket, check_prefix(prefix)
