"""The IO manager in a real Dagster instance, on a folder and on a real S3 server."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from dagster import (
    AssetExecutionContext,
    AssetIn,
    AssetKey,
    AssetsDefinition,
    DagsterInstance,
    ExecuteInProcessResult,
    StaticPartitionsDefinition,
    asset,
    job,
    materialize,
    mem_io_manager,
    op,
)

from foxhunt_pipeline.checkpoints.format import Checkpoint, save
from foxhunt_pipeline.config import StoreConfig
from foxhunt_pipeline.errors import AccessDeniedError, CheckpointError, NotFoundError
from resources.checkpoints import CheckpointIOManager, StoredCheckpoints
from support.checkpoints import checkpoint

AWKWARD = ["a/b", "a.b", "a|b", "a", "b", "current.json", "current", "%2E", "a%2Fb", "a b", "é"]


@pytest.fixture
def manager(store_config: StoreConfig) -> CheckpointIOManager:
    return CheckpointIOManager.of(store_config)


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


def number(made: Checkpoint) -> int:
    return int(made.tensors["steps"])


def source(key: list[str], value: Any, **options: Any) -> AssetsDefinition:
    """An asset that returns ``value``, or what it gives for the context if it is callable."""

    @asset(key=key, io_manager_key="checkpoints", **options)
    def made(context: AssetExecutionContext) -> Any:
        return value(context) if callable(value) else value

    return made


def sink(key: list[str], seen: list[Any]) -> AssetsDefinition:
    """An asset that takes the asset ``key`` as an input and keeps what it was given."""

    @asset(ins={"given": AssetIn(key=key)}, name="sink")
    def taker(given: Any) -> None:
        seen.append(given)

    return taker


def run(
    instance: DagsterInstance, manager: CheckpointIOManager, *assets: Any, **options: Any
) -> ExecuteInProcessResult:
    resources = {"checkpoints": manager, "io_manager": mem_io_manager}
    return materialize(assets, resources=resources, instance=instance, **options)


def test_windows_go_out_and_come_in_with_their_figures(
    manager: CheckpointIOManager, instance: DagsterInstance, tmp_path: Path
) -> None:
    file = tmp_path / "w001.safetensors"
    save(checkpoint(1), file)
    windows = {"w000": checkpoint(0), "w001": file, "production": checkpoint(2)}
    key, seen = ["tlob", "training"], []
    result = run(instance, manager, source(key, windows), sink(key, seen))
    (given,) = seen
    assert isinstance(given, StoredCheckpoints) and len(given) == 3
    assert {name: number(made) for name, made in given.items()} == {
        "w000": 0,
        "w001": 1,
        "production": 2,
    }
    assert torch.equal(given["w000"].tensors["head.bias"], checkpoint(0).tensors["head.bias"])
    assert given["w000"].header == checkpoint(0).header

    (event,) = result.asset_materializations_for_node("tlob__training")
    figures = {name: value.value for name, value in event.metadata.items()}
    assert figures["files"] == 3 and figures["parameters"] == 3 * 40
    heads = {head.key: head.size for head in manager.store.list("blobs")}
    assert heads.keys() == {f"blobs/{digest}" for digest in figures["sha256"].values()}
    assert figures["bytes"] == sum(heads.values())
    assert heads[f"blobs/{given.blob('w001').sha256}"] == file.stat().st_size
    assert figures["manifest"].startswith("checkpoints/tlob.training/")


def test_a_single_checkpoint_stays_single_and_new_output_replaces_old(
    manager: CheckpointIOManager, instance: DagsterInstance
) -> None:
    seen: list[Any] = []
    for seed in (1, 2, 2):
        run(instance, manager, source(["one"], checkpoint(seed)), sink(["one"], seen))
    assert [number(made) for made in seen] == [1, 2, 2]
    names = [head.key.rpartition("/")[2] for head in manager.store.list("checkpoints/one")]
    assert len(names) == 3 and "current.json" in names, "two manifests and the pointer"


def test_no_two_assets_or_partitions_share_a_place(
    manager: CheckpointIOManager, instance: DagsterInstance
) -> None:
    partitions = StaticPartitionsDefinition(AWKWARD)
    keys = [["a"], ["a", "b"]]
    assets = {
        tuple(key): source(
            key,
            lambda context, n=100 * n: checkpoint(n + AWKWARD.index(context.partition_key)),
            partitions_def=partitions,
        )
        for n, key in enumerate(keys)
    }
    for partition in AWKWARD:
        assert run(instance, manager, *assets.values(), partition_key=partition).success
    pointers = [h.key for h in manager.store.list("checkpoints") if h.key.endswith("current.json")]
    assert len(pointers) == len(set(pointers)) == len(keys) * len(AWKWARD)
    for n, key in enumerate(keys):
        seen: list[Any] = []
        run(instance, manager, sink(key, seen), assets[tuple(key)].to_source_asset())
        (given,) = seen
        assert {partition: number(made) for partition, made in given.items()} == {
            partition: 100 * n + i for i, partition in enumerate(AWKWARD)
        }


def test_a_partition_cannot_take_the_pointers_place_nor_a_dot_join_keys(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    manager = CheckpointIOManager(url=str(tmp_path / "store"))
    partitions = StaticPartitionsDefinition(["current.json"])
    run(instance, manager, source(["a"], checkpoint(1)), source(["a", "b"], checkpoint(2)))
    for key, seed in ((["a"], 3), (["a.b"], 4)):
        made = source(key, checkpoint(seed), partitions_def=partitions)
        run(instance, manager, made, partition_key="current.json")
    seen: list[Any] = []
    for key in (["a"], ["a", "b"]):
        run(instance, manager, sink(key, seen), source(key, checkpoint(9)).to_source_asset())
    assert [number(made) for made in seen] == [1, 2]
    pointers = {h.key for h in manager.store.list("checkpoints") if h.key.endswith("/current.json")}
    assert len(pointers) == 4


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"weights": [1.0]}, "'weights' of .* is a list, not a checkpoint"),
        ([1, 2], "is a list"),
        (torch.zeros(3), "is a Tensor"),
        (None, "is a NoneType"),
        ({}, "is empty"),
        ({1: checkpoint()}, "mapping from names"),
        ({"w": Checkpoint({}, checkpoint().header)}, "empty"),
        ({"w": Checkpoint({"x": torch.full((40,), torch.nan)}, checkpoint().header)}, "NaN"),
        ({"w": Path("absent.safetensors")}, "no checkpoint file"),
    ],
)
def test_what_is_no_checkpoint_is_refused_and_nothing_is_stored(
    tmp_path: Path, instance: DagsterInstance, value: Any, said: str
) -> None:
    manager = CheckpointIOManager(url=str(tmp_path / "store"))
    with pytest.raises(CheckpointError, match=said):
        run(instance, manager, source(["bad"], value))
    assert [*manager.store.list("")] == []


def test_an_op_outside_assets_is_refused(tmp_path: Path) -> None:
    @op
    def made() -> Checkpoint:
        return checkpoint()

    @job(resource_defs={"io_manager": CheckpointIOManager(url=str(tmp_path / "store"))})
    def plain() -> None:
        made()

    with pytest.raises(CheckpointError, match="no asset's"):
        plain.execute_in_process()


def test_damage_is_caught_when_the_window_is_asked_for(
    manager: CheckpointIOManager, instance: DagsterInstance
) -> None:
    seen: list[Any] = []
    windows = {"w000": checkpoint(0), "w001": checkpoint(1)}
    run(instance, manager, source(["x"], windows), sink(["x"], seen))
    given: Mapping[str, Checkpoint] = seen[0]
    key = f"blobs/{seen[0].blob('w001').sha256}"
    data = bytearray(manager.store.get(key).data)
    data[-3] ^= 1
    manager.store.delete(key)
    manager.store.put_new(key, bytes(data))
    assert number(given["w000"]) == 0
    with pytest.raises(Exception, match="SHA-256"):
        given["w001"]

    pointer = manager.store.get("checkpoints/x/current.json")
    manifest = json.loads(pointer.data)["manifest"]
    stored = manager.store.get(manifest)
    manager.store.replace(manifest, stored.data.replace(b"w000", b"w009"), stored.etag)
    upstream = source(["x"], windows).to_source_asset()
    with pytest.raises(CheckpointError, match="is damaged"):
        run(instance, manager, sink(["x"], seen), upstream)
    manager.store.replace("checkpoints/x/current.json", b"half a poin", pointer.etag)
    with pytest.raises(CheckpointError, match=r"checkpoints/x/current\.json is damaged"):
        run(instance, manager, sink(["x"], seen), upstream)
    manager.store.delete("checkpoints/x/current.json")
    with pytest.raises(NotFoundError, match=r"checkpoints/x/current\.json"):
        run(instance, manager, sink(["x"], seen), upstream)


def test_credentials_are_never_shown_and_wrong_ones_are_named(
    s3_config: StoreConfig, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-0123456789")
    manager = CheckpointIOManager.of(s3_config)
    shown: list[str] = []

    def inside(context: AssetExecutionContext) -> Checkpoint:
        shown.append(repr(context.resources.checkpoints))
        return checkpoint()

    with pytest.raises(AccessDeniedError, match="403") as caught:
        run(
            instance,
            manager,
            source(["x"], inside, required_resource_keys={"checkpoints"}),
        )
    assert shown and "wrong-secret" not in repr(manager) + str(manager) + shown[0]
    assert "wrong-secret" not in str(caught.value)
    assert instance.get_latest_materialization_event(AssetKey("x")) is None


def test_files_read_from_s3_are_kept_in_the_cache(
    s3_config: StoreConfig, instance: DagsterInstance, tmp_path: Path
) -> None:
    manager = CheckpointIOManager.of(s3_config, cache=tmp_path / "cache")
    seen: list[Any] = []
    run(instance, manager, source(["x"], {"w": checkpoint(4)}), sink(["x"], seen))
    assert number(seen[0]["w"]) == 4
    manager.store.delete(f"blobs/{seen[0].blob('w').sha256}")
    assert number(seen[0]["w"]) == 4
