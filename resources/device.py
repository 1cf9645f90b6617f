"""The device resource: which device a run computes on, and that nobody else does meanwhile."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dagster import ConfigurableResource
from pydantic import Field

if TYPE_CHECKING:
    from foxhunt_pipeline.training.device import Device

log = logging.getLogger(__name__)


class TorchDeviceResource(ConfigurableResource):  # type: ignore[type-arg]
    """A torch device. Nothing of torch is imported before the device is asked for."""

    device: str = Field(default="auto", description="auto, cpu or cuda:N.")
    require: bool = Field(default=False, description="Refuse to fall back to the CPU.")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto", description="auto is bf16 on CUDA devices that have it, else fp32."
    )

    def resolve(self) -> Device:
        """The device, not claimed.

        Raises :class:`~foxhunt_pipeline.errors.DeviceError` if it is required and not there;
        otherwise a fallback gives a :class:`DeviceFallbackWarning`.
        """
        from foxhunt_pipeline.training.device import resolve

        return resolve(self.device, self.require, self.precision)

    @contextmanager
    def claim(self) -> Iterator[Device]:
        """The device, held for this process alone while it is used; the CPU is shared.

        A pool of the orchestrator limits its own runs and knows nothing of a second instance, a
        notebook or a shell. The lock is the operating system's and goes with the process,
        however that ends. The device is resolved again once it is held: its free memory is
        then what a run will find.
        """
        device = self.resolve()
        if device.kind == "cpu":
            yield device
            return
        with exclusive(f"foxhunt-cuda-{device.uuid}.lock"):
            yield self.resolve()


@contextmanager
def exclusive(name: str, folder: Path | None = None) -> Iterator[None]:
    """Hold the machine-wide lock of that name; waits for whoever has it."""
    path = (folder or Path(tempfile.gettempdir())) / name
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:  # another user's file in a shared folder may be opened, but not with O_CREAT
        handle = os.open(path, flags)
    except FileNotFoundError:
        handle = os.open(path, flags | os.O_CREAT, 0o444)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("waiting for %s: another process has it", path)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
