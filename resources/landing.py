"""Opens the landing: where DBN files arrive."""

from __future__ import annotations

from pathlib import Path

from foxhunt_pipeline.config import Settings
from foxhunt_pipeline.market.landing import FolderLanding, Landing, S3Landing


def open_landing(settings: Settings, cache: Path) -> Landing:
    """The configured landing, a folder or an S3 prefix. The state folder's own is made."""
    url = settings.landing_url
    config = settings.config.landing.model_copy(update={"url": url})
    if config.is_s3:
        from resources.stores import open_client

        client, bucket, prefix = open_client(config)
        return S3Landing(client, bucket, prefix, cache)
    if not settings.config.landing.url:
        Path(url).mkdir(parents=True, exist_ok=True)
    return FolderLanding(Path(url))
