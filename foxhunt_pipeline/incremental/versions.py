"""The version of a stage: its code, the configuration it reads and the device it runs on."""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from foxhunt_pipeline.artifacts import digest_of
from foxhunt_pipeline.config import Config
from foxhunt_pipeline.errors import CodeChangedError
from foxhunt_pipeline.incremental.closure import CodeBase
from foxhunt_pipeline.incremental.sources import source_of
from foxhunt_pipeline.incremental.stages import Stage

_RESOLVED = frozenset({"training.device", "training.require_device", "training.precision"})
"""Keys that count through the device that they resolve to."""


@dataclass(frozen=True)
class StageVersion:
    """``digest`` names it; ``components`` say what it is made of, for explaining a difference."""

    digest: str
    item_digest: str
    """The same without the configuration that only selects items."""
    components: Mapping[str, str]
    files: Mapping[str, Path]
    """Source file of each module of the closure."""


def stage_versions(
    config: Config, code: CodeBase, stages: Mapping[str, Stage]
) -> dict[str, StageVersion]:
    """Versions of all stages from the files on disk now. Imports none of them."""
    values = config.model_dump(mode="json")
    device = device_kind(config)
    return {name: _version(stage, code, values, device) for name, stage in stages.items()}


def _version(stage: Stage, code: CodeBase, values: Mapping[str, Any], device: str) -> StageVersion:
    closure = code.closure(stage.entry)
    components = closure.components() | _configured(stage.config, values)
    if stage.on_device:
        components["device"] = device
    item_digest = digest_of(stage.name, components)
    components |= _configured(stage.selects, values)
    return StageVersion(digest_of(stage.name, components), item_digest, components, closure.files)


def _configured(paths: Iterable[str], values: Mapping[str, Any]) -> dict[str, str]:
    leaves = [leaf for path in paths for leaf in _leaves(path, _at(values, path))]
    return {
        f"config {key}": json.dumps(value, sort_keys=True)
        for key, value in leaves
        if key not in _RESOLVED
    }


def device_kind(config: Config) -> str:
    """Kind and precision of the device that training will run on, found without torch.

    ``auto`` is CUDA where the installed torch is a CUDA build and the driver has a device.
    """
    wanted = config.training.device
    if wanted == "auto":
        cuda_build = "+cpu" not in metadata.version("torch")
        wanted = "cuda" if cuda_build and Path("/dev/nvidiactl").exists() else "cpu"
    kind = wanted.partition(":")[0]
    precision = config.training.precision
    if precision == "auto":
        precision = "bf16" if kind == "cuda" else "fp32"
    return f"{kind} {precision}"


def difference(
    old: Mapping[str, str], new: Mapping[str, str], files: Mapping[str, Path]
) -> list[str]:
    """What changed between two versions' components, as a reader would say it.

    files: of the modules, as far as they are there.
    """
    lines = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        kind, _, what = name.partition(" ")
        if kind == "module":
            verb = "is new" if before is None else "is gone" if after is None else "changed"
            lines.append(f"{module_path(what, files.get(what))} {verb}")
        elif before is None:
            lines.append(f"{name} is {after}")
        elif after is None:
            lines.append(f"{name} is gone")
        else:
            lines.append(f"{name}: {before} -> {after}")
    return lines


def module_path(module: str, file: Path | None = None) -> str:
    """A module as the file a reader looks for, from inside its package."""
    parts = module.split(".")
    if file is not None and file.name == "__init__.py":
        parts.append("__init__")
    inside = parts[1:] if len(parts) > 1 and parts[0] == "foxhunt_pipeline" else parts
    return "/".join(inside) + ".py"


def check_unchanged(stage: str, planned: StageVersion, started_ns: int) -> None:
    """Catch a save between the plan and the import of a stage's modules.

    To be called after the entry modules are imported. Without it new code's result would be
    stored under the old code's key, for everyone. The files of the planned closure decide what
    is imported, so they alone are read again.

    started_ns: when this process began. A file saved since may have been imported before or
    after, and what it says now proves nothing.
    Raises :class:`CodeChangedError`.
    """
    changed = []
    for module, path in planned.files.items():
        try:
            same = source_of(path).digest == planned.components[f"module {module}"]
            saved = path.stat().st_mtime_ns > started_ns
        except FileNotFoundError:
            same, saved = False, False
        if not same:
            changed.append(f"{module_path(module, path)} changed")
        elif saved:
            changed.append(f"{module_path(module, path)} was saved")
        elif _stale_bytecode(path):
            changed.append(f"{module_path(module, path)} was saved twice in a second")
    if changed:
        raise CodeChangedError(
            f"Code changed while the run of {stage} was starting: {'; '.join(changed)}.",
            remedy="Run again.",
        )


def _stale_bytecode(path: Path) -> bool:
    """Whether Python takes bytecode for a file's that is older than the file, and drop it.

    Bytecode counts as the file's if it names the same size and the same second of the last save
    (PEP 552), so a second save within that second, of equal length, goes unseen.
    """
    cached = Path(importlib.util.cache_from_source(str(path)))
    try:
        source, compiled = path.stat(), cached.stat()
        if compiled.st_mtime_ns >= source.st_mtime_ns:
            return False
        with cached.open("rb") as file:
            _, flags, second, size = struct.unpack("<IIII", file.read(16))
    except (OSError, struct.error):
        return False
    stale = not flags and second == int(source.st_mtime) and size == source.st_size
    if stale:
        cached.unlink(missing_ok=True)
    return stale


def _at(values: Mapping[str, Any], path: str) -> Any:
    value: Any = values
    for part in path.split("."):
        value = value[part]
    return value


def _leaves(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [leaf for key, inner in value.items() for leaf in _leaves(f"{path}.{key}", inner)]
    return [(path, value)]
