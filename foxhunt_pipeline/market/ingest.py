"""Taking files into the landing: whole and intact ones, or none of their bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foxhunt_pipeline.errors import DataError, FoxhuntError
from foxhunt_pipeline.market.dbn import open_dbn
from foxhunt_pipeline.market.facts import FileFacts
from foxhunt_pipeline.market.inventory import inspect, read_manifest
from foxhunt_pipeline.market.landing import LandedFile, is_data
from foxhunt_pipeline.stores import files


@dataclass(frozen=True)
class Report:
    """What became of a file: ``accepted`` (it is in the landing now), ``present`` (these bytes
    were there already), ``passed over`` (a support file or archive, which is no market data) or
    ``refused``; ``reason`` says why."""

    path: Path
    outcome: Literal["accepted", "present", "passed over", "refused"]
    reason: str
    facts: FileFacts | None = None


def check_files(
    paths: Sequence[Path], landing: Path, calendars: Mapping[str, str] | None = None
) -> list[Report]:
    """Verify each file completely, against a ``manifest.json`` beside it too, and copy the good
    ones into the folder ``landing``.

    A copy appears under its name only when its bytes are those that were verified. A whole file
    of a schema that is not used is accepted. A name that the landing has with other bytes is
    refused: delivered data is not overwritten.
    """
    return [_take(path, landing, calendars or {}) for path in paths]


def _take(path: Path, landing: Path, calendars: Mapping[str, str]) -> Report:
    if not is_data(path.name):
        return Report(path, "passed over", f"{path.name}: is no data file.")
    try:
        facts = _inspected(path, calendars)
        target = landing / path.name
        if target.exists():
            if files.hash_file(target) == facts.sha256:
                return Report(path, "present", f"{path.name}: is in the landing already.", facts)
            raise DataError(
                f"{path.name}: the landing has a file of that name with other bytes.",
                remedy="Give the new one another name, or remove the old one.",
            )
        files.make_folder(landing)
        with path.open("rb") as source:
            files.land(source, target, sha256=facts.sha256, size=facts.size, origin=path.name)
    except FoxhuntError as error:
        return Report(path, "refused", str(error))
    except OSError as error:
        return Report(path, "refused", f"{path}: {error.strerror or error}.")
    reason = facts.reason or f"{facts.records:,} records of {facts.schema}"
    return Report(path, "accepted", f"{path.name}: {reason}.", facts)


def _inspected(path: Path, calendars: Mapping[str, str]) -> FileFacts:
    """Facts of a whole file; raises :class:`DataError` for any other."""
    size = path.stat().st_size
    facts = inspect(path, LandedFile(path.name, size, ""), calendars)
    if facts.status == "refused":
        raise DataError(facts.reason)
    if facts.status == "ignored":
        open_dbn(path).drain()
    manifest = path.with_name("manifest.json")
    listed = (read_manifest(manifest) or {}).get(path.name) if manifest.is_file() else None
    if listed and (listed.size, listed.sha256 or facts.sha256) != (size, facts.sha256):
        raise DataError(
            f"{path.name}: has {size} bytes and SHA-256 {facts.sha256}, manifest.json beside it "
            f"lists {listed.size} bytes and SHA-256 {listed.sha256}.",
            remedy="The download is not complete, or not intact: download it again.",
        )
    return facts
