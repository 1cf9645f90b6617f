"""The checkpoint file: what it keeps, and all that it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from torch import nn

from foxhunt_pipeline.checkpoints.format import Checkpoint, load, read_header, save, verify
from foxhunt_pipeline.errors import CheckpointError
from support.checkpoints import HEADER, checkpoint


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save(checkpoint(), path)
    return path


def test_tensors_and_header_come_back(saved: Path) -> None:
    given_, back = checkpoint(), load(saved)
    assert back.header == given_.header == read_header(saved) == verify(saved)
    assert back.tensors.keys() == given_.tensors.keys()
    for name, tensor in given_.tensors.items():
        assert torch.equal(back.tensors[name], tensor)
    others = load_file(saved)  # an independent reader of the format
    assert {n: a.tolist() for n, a in others.items()} == {
        n: t.tolist() for n, t in given_.tensors.items()
    }


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.complex64,
        torch.int8,
        torch.int64,
        torch.bool,
    ],
)
def test_every_kind_of_number_is_kept_to_the_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    numbers = torch.arange(-20, 20).to(torch.float32).to(dtype).reshape(5, 8)
    save(Checkpoint({"x": numbers}, HEADER), tmp_path / "x")
    back = load(tmp_path / "x").tensors["x"]
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), numbers.view(torch.uint8))


def test_views_and_tied_weights_are_kept(tmp_path: Path) -> None:
    table = torch.randn(8, 8)
    tensors = {"tied": table, "embedding": table, "turned": table.t(), "row": table[3, 2:5]}
    save(Checkpoint(tensors, HEADER), tmp_path / "x")
    back = load(tmp_path / "x").tensors
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_a_module_trained_on_is_rebuilt_from_the_file_alone(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2))
    for _ in range(3):
        module(torch.randn(16, 4)).square().mean().backward()
    n = sum(p.numel() for p in module.parameters())
    path = tmp_path / "x"
    save(Checkpoint(module.state_dict(), replace(HEADER, parameter_count=n)), path)
    fresh = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2))
    fresh.load_state_dict(load(path).tensors)
    x = torch.randn(5, 4)
    assert torch.equal(module.eval()(x), fresh.eval()(x))


SAVER = """
import sys
from pathlib import Path
from support.checkpoints import checkpoint
from foxhunt_pipeline.checkpoints.format import Checkpoint, save
made = checkpoint(3)
turned = Checkpoint(dict(reversed(made.tensors.items())), made.header)
save(turned, Path(sys.argv[1]))
"""


def test_the_same_checkpoint_gives_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    save(checkpoint(3), tmp_path / "here")
    save(load(tmp_path / "here"), tmp_path / "again")
    tests = str(Path(__file__).parents[1])
    environ = os.environ | {"PYTHONHASHSEED": "123", "PYTHONPATH": tests}
    there = str(tmp_path / "there")
    subprocess.run([sys.executable, "-c", SAVER, there], env=environ, check=True)
    contents = {(tmp_path / name).read_bytes() for name in ("here", "again", "there")}
    assert len(contents) == 1


def test_the_digest_sees_numbers_and_input_but_no_provenance(tmp_path: Path) -> None:
    made = checkpoint()
    save(made, tmp_path / "x")
    assert load(tmp_path / "x").digest() == made.digest()
    header = made.header
    for same in (
        replace(header, code_version="other", libraries={}, data_versions={}, seed=8),
        replace(header, metrics={}, device="cuda:0", extra={"at": "noon"}),
    ):
        assert Checkpoint(made.tensors, same).digest() == made.digest()
    weight = made.tensors["head.weight"].clone()
    weight[0, 0] += 1e-6
    for other in (
        Checkpoint({**made.tensors, "head.weight": weight}, header),
        Checkpoint({**made.tensors, "head.weight": made.tensors["head.weight"].t()}, header),
        Checkpoint(made.tensors, replace(header, columns=("imbalance", "spread_bps"))),
        Checkpoint(made.tensors, replace(header, scale=(1.5, 2.5))),
        Checkpoint(made.tensors, replace(header, config={})),
    ):
        assert other.digest() != made.digest()


def _weights(**changes: Any) -> dict[str, torch.Tensor]:
    return {**checkpoint().tensors, **changes}


NAN = torch.zeros(8, 8)
NAN[7, 7] = float("nan")


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({}, "empty"),
        ({"a": torch.zeros(0)}, "empty"),
        ({"a": torch.zeros(2)}, "holds 2 numbers and cannot cover its 40 parameters"),
        (_weights(nan=NAN), "nan of .* NaN"),
        (_weights(inf=torch.full((3,), -torch.inf, dtype=torch.bfloat16)), "inf of .* infinity"),
        (_weights(f8=torch.tensor([torch.nan]).to(torch.float8_e4m3fn)), "f8 of .* NaN"),
        (_weights(c=torch.tensor([complex(0, torch.inf)])), "c of .* infinity"),
        (_weights(**{"../../x": torch.zeros(1)}), "unsafe name '../../x'"),
        (_weights(**{"": torch.zeros(1)}), "unsafe name"),
        (_weights(**{"a..b": torch.zeros(1)}), "unsafe name"),
        (_weights(**{"a\n": torch.zeros(1)}), "unsafe name"),
        (_weights(__metadata__=torch.zeros(1)), "unsafe name"),
        (_weights(**{"a" * 600: torch.zeros(1)}), "unsafe name"),
        (_weights(m=torch.zeros(3, device="meta")), "no dense data"),
        (_weights(s=torch.eye(3).to_sparse()), "no dense data"),
    ],
)
def test_a_state_that_is_no_model_is_not_saved(
    tmp_path: Path, tensors: dict[str, torch.Tensor], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said) as caught:
        save(Checkpoint(tensors, HEADER), tmp_path / "x")
    assert caught.value.remedy
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"columns": ()}, "no input columns"),
        ({"columns": ("a", "a")}, "named twice"),
        ({"center": (0.0,)}, "1 centers"),
        ({"scale": (1.0, 0.0)}, "not above 0"),
        ({"center": (0.0, float("nan"))}, "NaN"),
        ({"parameter_count": 0}, "counts 0 parameters"),
        ({"metrics": {"loss": float("nan")}}, "not of its schema"),
        ({"extra": {"x": object()}}, "not of its schema"),
        ({"horizons": ("ten",)}, "horizons"),
    ],
)
def test_a_header_that_is_wrong_is_not_saved(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said):
        save(checkpoint(**changes), tmp_path / "x")
    assert [*tmp_path.iterdir()] == []


def _foreign(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None) -> None:
    """Write with the format's own library, which refuses little."""
    save_file(tensors, path, metadata=metadata)


def _metadata(path: Path, **changes: Any) -> dict[str, str]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(json.loads(file.read(length))["__metadata__"]["foxhunt"])
    return {"foxhunt": json.dumps(header | changes)}


def _sixteen_bytes(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 8) + b"{}      ")


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _huge(path: Path) -> None:
    """A header that promises 4 TB."""
    entry = {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4 * 10**12]}
    text = json.dumps({"__metadata__": _metadata(path), "w": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(100))


def _long_header(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 2**62) + path.read_bytes()[8:])


def _pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps({"weight": [1.0] * 40}))


def _nan(path: Path) -> None:
    weights = np.zeros((8, 8), np.float32)
    weights[0, 0] = np.nan
    _foreign(path, {"w": weights}, _metadata(path))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_sixteen_bytes, r"\(16 bytes\)|without the header"),
        (lambda path: path.write_bytes(b""), r"\(0 bytes\) is not a whole safetensors file"),
        (_truncated, "not a whole safetensors file"),
        (_huge, "not a whole safetensors file"),
        (_long_header, "not a whole safetensors file"),
        (_pickled, "not a whole safetensors file"),
        (_nan, "w of .* NaN"),
        (lambda p: _foreign(p, {"w": np.zeros(40, np.float32)}, None), "without the header"),
        (lambda p: _foreign(p, {}, _metadata(p)), "empty"),
        (lambda p: _foreign(p, {"w": np.zeros(39, np.float32)}, _metadata(p)), "cannot cover"),
        (lambda p: _foreign(p, {"../x": np.zeros(40)}, _metadata(p)), "unsafe name"),
        (lambda p: _foreign(p, {"w": np.zeros(40)}, {"foxhunt": "no JSON"}), "damaged"),
        (lambda p: _foreign(p, {"w": np.zeros(40)}, {"foxhunt": "[1]"}), "damaged"),
        (lambda p: _foreign(p, {"w": np.zeros(40)}, _metadata(p, schema_version=2)), "schema 2"),
        (lambda p: _foreign(p, {"w": np.zeros(40)}, _metadata(p, seed=None)), "seed"),
        (lambda p: _foreign(p, {"w": np.zeros(40)}, _metadata(p, module="os")), "module"),
        (lambda p: _foreign(p, {"w": np.zeros(40)}, _metadata(p, scale=[1.0])), "scales"),
        (lambda p: p.unlink(), "no checkpoint file"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused(
    saved: Path, damage: Callable[[Path], None], said: str
) -> None:
    damage(saved)
    for read in (load, verify):
        with pytest.raises(CheckpointError, match=said) as caught:
            read(saved)
        assert caught.value.remedy and saved.name in str(caught.value)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_flipped_bit_passes_the_manifests_sha256(saved: Path, data: st.DataObject) -> None:
    whole = saved.read_bytes()
    sha256, size = hashlib.sha256(whole).hexdigest(), len(whole)
    bit = data.draw(st.integers(0, 8 * size - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    damaged = saved.with_name("damaged")
    damaged.write_bytes(flipped)
    with pytest.raises(CheckpointError, match="SHA-256"):
        load(damaged, sha256=sha256, size=size)
    assert load(saved, sha256=sha256, size=size).header == HEADER
    with pytest.raises(CheckpointError, match="bytes, not the"):
        load(saved, sha256=sha256, size=size + 1)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_without_a_manifest_damage_is_an_error_of_its_kind_or_harmless(
    saved: Path, data: st.DataObject
) -> None:
    """Whatever the bytes, reading gives a checkpoint or a CheckpointError, never a crash."""
    whole = saved.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=40))
    damaged = saved.with_name("damaged")
    damaged.write_bytes(whole[:at] + junk + whole[at + len(junk) :])
    try:
        tensors = load(damaged).tensors.values()
    except CheckpointError:
        return
    assert all(torch.isfinite(tensor).all() for tensor in tensors)
