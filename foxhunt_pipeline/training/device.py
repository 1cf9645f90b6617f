"""The device a run computes on, and the precision it computes in."""

from __future__ import annotations

import os
import platform
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from foxhunt_pipeline.errors import ConfigError, DeviceError

Precision = Literal["fp32", "bf16"]


class DeviceFallbackWarning(UserWarning):
    """The device asked for is not there and the CPU is used instead."""


@dataclass(frozen=True)
class Device:
    """A resolved device. Memory is in bytes, as it was when the device was resolved."""

    index: int | None
    """CUDA index, None for the CPU."""
    name: str
    memory_total: int
    memory_free: int
    capability: str
    """CUDA compute capability as ``9.0``, or the CPU's vector instructions as ``AVX2``."""
    precision: Precision
    uuid: str = ""
    """Of the CUDA device, whatever index it goes by in this process."""
    fallback: str = ""
    """Why this is not the device asked for; empty where it is."""

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        return "cpu" if self.index is None else "cuda"

    @property
    def torch(self) -> torch.device:
        return torch.device(str(self))

    def __str__(self) -> str:
        return "cpu" if self.index is None else f"cuda:{self.index}"

    def describe(self) -> dict[str, Any]:
        """Everything about the device, as JSON data."""
        return {
            "device": str(self),
            "name": self.name,
            "memory_total": self.memory_total,
            "memory_free": self.memory_free,
            "capability": self.capability,
            "precision": self.precision,
            "fallback": self.fallback,
        }


def resolve(device: str = "auto", require: bool = False, precision: str = "auto") -> Device:
    """The device to use.

    Args:
        device: ``auto`` (the first CUDA device, else the CPU), ``cpu``, ``cuda`` or ``cuda:N``.
        require: Refuse to fall back to the CPU. Without it, a CUDA device that is asked for by
            name and not there is replaced by the CPU with a :class:`DeviceFallbackWarning`.
        precision: ``fp32``, ``bf16`` or ``auto``: bf16 on a CUDA device that has it, else fp32.

    Raises:
        ConfigError: ``device`` or ``precision`` is none of these.
        DeviceError: The device, or its bf16, is required and not there.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", device):
        raise ConfigError(f"training.device = {device!r}.", remedy="Use auto, cpu or cuda:N.")
    if precision not in ("auto", "fp32", "bf16"):
        raise ConfigError(f"training.precision = {precision!r}.", remedy="Use auto, fp32 or bf16.")
    if device == "cpu":
        return _cpu(precision)
    missing = _missing(device)
    if not missing:
        return _cuda(int(device.partition(":")[2] or 0), precision)
    if require:
        raise DeviceError(
            f"training.device = {device} is required, but {missing}.",
            remedy="Free or install the device, or set training.require_device = false.",
        )
    if device == "auto":
        return _cpu(precision)
    warnings.warn(f"{device}: {missing}; using the CPU.", DeviceFallbackWarning, stacklevel=2)
    return _cpu(precision, fallback=f"{device}: {missing}")


def _missing(device: str) -> str:
    """Why a CUDA device cannot be used; empty where it can."""
    if not torch.cuda.is_available():
        built = torch.version.cuda
        return f"torch {torch.__version__} " + (
            "finds no CUDA device" if built else "is built without CUDA"
        )
    count = torch.cuda.device_count()
    index = int(device.partition(":")[2] or 0)
    return "" if index < count else f"there are {count} CUDA devices, counted from 0"


def _cuda(index: int, precision: str) -> Device:
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    with torch.cuda.device(index):
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bf16" and not has_bf16:
        raise DeviceError(
            f"cuda:{index} ({properties.name}) has no bf16.",
            remedy="Set training.precision to auto or fp32.",
        )
    return Device(
        index=index,
        name=properties.name,
        memory_total=total,
        memory_free=free,
        capability=f"{properties.major}.{properties.minor}",
        precision="bf16" if has_bf16 and precision != "fp32" else "fp32",
        uuid=str(properties.uuid),
    )


def _cpu(precision: str, fallback: str = "") -> Device:
    page = os.sysconf("SC_PAGE_SIZE")
    return Device(
        index=None,
        name=_cpu_name(),
        memory_total=page * os.sysconf("SC_PHYS_PAGES"),
        memory_free=page * os.sysconf("SC_AVPHYS_PAGES"),
        capability=torch.backends.cpu.get_cpu_capability(),
        precision="bf16" if precision == "bf16" else "fp32",
        fallback=fallback,
    )


def _cpu_name() -> str:
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        named = re.search(r"^model name\s*:\s*(.+)$", facts.read_text(), re.MULTILINE)
        if named:
            return named[1].strip()
    return platform.processor() or platform.machine()
