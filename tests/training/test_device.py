"""The device resolver and its resource, on a machine without CUDA."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from foxhunt_pipeline.errors import ConfigError, DeviceError
from foxhunt_pipeline.training.device import Device, DeviceFallbackWarning, resolve
from resources.device import TorchDeviceResource, exclusive

ROOT = Path(__file__).resolve().parents[2]


without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
with_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_the_cpu_describes_itself() -> None:
    device = resolve("cpu")
    facts = device.describe()
    assert facts["device"] == "cpu" and device.torch == torch.device("cpu")
    assert facts["name"] and facts["capability"] == torch.backends.cpu.get_cpu_capability()
    meminfo = dict(
        line.split(":") for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line
    )
    total = int(meminfo["MemTotal"].split()[0]) * 1024
    assert facts["memory_total"] == pytest.approx(total, rel=0.01)
    assert 0 < facts["memory_free"] <= facts["memory_total"]
    assert facts["precision"] == "fp32" and facts["fallback"] == ""


@without_cuda
def test_auto_takes_the_cpu_without_a_word() -> None:
    assert str(resolve("auto")) == "cpu"


@without_cuda
@pytest.mark.parametrize("asked", ["auto", "cuda", "cuda:0", "cuda:3"])
def test_require_refuses_to_fall_back(asked: str) -> None:
    with pytest.raises(DeviceError, match=rf"{asked} is required, but torch .*CUDA"):
        resolve(asked, require=True)


@without_cuda
def test_a_fallback_warns_and_is_remembered() -> None:
    with pytest.warns(DeviceFallbackWarning, match=r"cuda:1: torch .*CUDA.*; using the CPU"):
        device = resolve("cuda:1")
    assert str(device) == "cpu"
    assert device.describe()["fallback"].startswith("cuda:1: torch")


def test_require_is_content_with_the_cpu_that_was_asked_for() -> None:
    assert str(resolve("cpu", require=True)) == "cpu"


@pytest.mark.parametrize(
    ("device", "precision"), [("gpu", "auto"), ("cuda:", "auto"), ("cpu", "fp16")]
)
def test_wrong_words_are_configuration_errors(device: str, precision: str) -> None:
    with pytest.raises(ConfigError, match=r"training\.(device|precision)"):
        resolve(device, precision=precision)


def test_bf16_on_the_cpu_only_when_asked() -> None:
    assert resolve("cpu", precision="auto").precision == "fp32"
    assert resolve("cpu", precision="bf16").precision == "bf16"


@with_cuda
def test_an_index_past_the_last_device_is_not_there() -> None:
    with pytest.raises(DeviceError, match=r"cuda:99 is required, but there are \d+ CUDA devices"):
        resolve("cuda:99", require=True)


@with_cuda
def test_a_cuda_device_describes_itself() -> None:
    device = resolve("cuda:0", require=True)
    assert device.kind == "cuda" and device.uuid
    assert device.name == torch.cuda.get_device_name(0)
    assert float(device.capability) > 1 and 0 < device.memory_free <= device.memory_total


def test_importing_the_resource_imports_no_torch() -> None:
    code = "import sys, resources.device; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_resource_resolves_and_claims() -> None:
    resource = TorchDeviceResource(device="cpu", precision="bf16")
    with resource.claim() as device:
        assert isinstance(device, Device)
        assert str(device) == "cpu" and device.precision == "bf16"


@without_cuda
def test_the_resource_requires() -> None:
    resource = TorchDeviceResource(device="cuda:0", require=True)
    with pytest.raises(DeviceError, match="cuda:0 is required"), resource.claim():
        raise AssertionError("claimed a device that is not there")


def test_the_lock_excludes_other_processes_and_dies_with_its_holder(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        "import sys, time, pathlib; from resources.device import exclusive\n"
        f"with exclusive('gpu.lock', pathlib.Path({str(tmp_path)!r})):\n"
        f"    pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=os.environ)
    try:
        deadline = time.monotonic() + 30
        while not ready.exists():
            assert time.monotonic() < deadline and holder.poll() is None
            time.sleep(0.02)
        waiter = (
            "import pathlib; from resources.device import exclusive\n"
            f"with exclusive('gpu.lock', pathlib.Path({str(tmp_path)!r})): print('mine')"
        )
        waiting = subprocess.Popen(
            [sys.executable, "-c", waiter], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.communicate(timeout=3)
    finally:
        holder.kill()
        holder.wait()
    output, errors = waiting.communicate(timeout=30)
    assert output.decode().strip() == "mine"
    assert b"another process has it" in errors


def test_the_lock_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with exclusive("gpu.lock", tmp_path):
            assert (tmp_path / "gpu.lock").exists()
