"""The S3 client, through dagster-aws.

Its ``S3Resource`` has no addressing style, checksum mode or CA bundle, which MinIO and its kin
need, so :class:`S3StoreResource` adds them.
"""

from __future__ import annotations

from typing import Any, Literal

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from dagster_aws.s3 import S3Resource
from pydantic import Field

from foxhunt_pipeline.errors import ConfigError
from foxhunt_pipeline.stores.s3 import WORKERS

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
