"""Edit one model, and only that model and what depends on it is rebuilt."""

from __future__ import annotations

import shutil

import torch

from support.editing import reformat, wrap_result
from support.project import CODE, SESSION_STAGES, Project

DAYS = ("2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05")
TLOB = ["tlob/training", "tlob/walk_forward", "tlob/release"]
PPO = ["ppo/training", "ppo/walk_forward", "ppo/release"]

OWN_FAMILY = '''
"""A linear forecast of the mean of the look-back, with the attention of the built-in layers."""

from dataclasses import dataclass

from torch import nn
from torch.nn import functional

from foxhunt_pipeline.models.contract import Forecast, ForecastFamily
from foxhunt_pipeline.models.layers.attention import MultiHeadAttention


@dataclass(frozen=True)
class Config:
    context: int = 4


class Linear(nn.Module):
    def __init__(self, config, spec):
        super().__init__()
        self.attention = MultiHeadAttention(spec.n_features, 1, head_dim=4)
        self.head = nn.Linear(spec.n_features, len(spec.horizons))

    def forward(self, x):
        return self.head((x + self.attention(x)).mean(dim=1))


def loss(config, output, batch):
    known = batch.y.isfinite()
    error = functional.mse_loss(output, batch.y.nan_to_num(0.0), reduction="none")
    weight = batch.weight.unsqueeze(1) * known
    return (error * weight).sum() / weight.sum().clamp_min(1e-12)


def predict(config, output):
    return Forecast(point=output)


FAMILY = ForecastFamily(
    name="plain", view="bars", config=Config, build=Linear, loss=loss, predict=predict
)
'''


def test_a_full_sync_leaves_nothing_to_do(built_project: Project) -> None:
    assert built_project.plan() == []
    runs = built_project.runs()
    assert [run.partition for run in runs] == [*DAYS, None]
    assert all(run.status == "SUCCESS" for run in runs)
    assert all(set(run.assets) == set(SESSION_STAGES) for run in runs[:4])
    assert set(runs[4].assets) == {"dataset", "baselines/walk_forward", *TLOB, *PPO}
    versions = built_project.versions()
    assert len(versions) == 4 * len(SESSION_STAGES) + 8
    for place, version in versions.items():
        assert built_project.materialization(*place).data_version == version
    for model in ("tlob", "ppo"):
        [release] = built_project.releases(model)
        assert release.sha256 == built_project.checkpoints(model)["production"]


def test_the_arithmetic_of_a_family_rebuilds_that_family_in_one_run(project: Project) -> None:
    before = project.versions()
    wrap_result(project.root / "foxhunt_pipeline/models/tlob.py", "loss", "2.0 * ({})")
    entries = project.plan()
    assert [entry["asset"] for entry in entries] == TLOB
    assert all("models/tlob.py changed" in entry["reason"] for entry in entries)
    assert all(entry["action"] == "rebuild" for entry in entries)
    synced = project.sync()
    [run] = synced.runs
    assert run.partition is None
    assert run.planned == set(TLOB)
    assert sorted(run.assets) == sorted(TLOB)
    trained = project.materialization("tlob/training").metadata
    assert (trained["windows_trained"], trained["windows_reused"]) == (3, 0)
    after = project.versions()
    assert {place for place in after if after[place] != before[place]} == {(t, None) for t in TLOB}
    assert [release.version for release in project.releases("tlob")] == ["v0001", "v0002"]
    assert len(project.releases("ppo")) == 1
    assert project.plan() == []


def test_comments_docstrings_and_layout_rebuild_nothing(project: Project) -> None:
    for package in CODE:
        for path in (project.root / package).rglob("*.py"):
            reformat(path)
    assert project.plan() == []
    assert project.sync().runs == []


def test_a_feature_with_the_same_result_stops_there(project: Project) -> None:
    before = project.versions()
    path = project.root / "foxhunt_pipeline/features/catalogue.py"
    wrap_result(path, "_mid_return", "({}) + 0.0")
    planned = project.planned()
    assert planned[:4] == [("features", day, "rebuild") for day in DAYS]
    assert planned[4:] == [
        (asset, None, "may_change") for asset in ("dataset", "baselines/walk_forward", *TLOB, *PPO)
    ]
    runs = project.sync().runs
    assert [(run.partition, run.assets) for run in runs] == [(day, ("features",)) for day in DAYS]
    assert project.materialization("features", DAYS[0]).metadata["items_computed"] > 0
    assert project.versions() == before
    assert project.plan() == []


def test_configuration_and_device_count_where_they_are_read(project: Project) -> None:
    project.env["FOXHUNT_TRAINING__DEVICE"] = "cpu"
    same_device = not torch.cuda.is_available()
    assert (project.plan() == []) == same_device
    project.env.pop("FOXHUNT_TRAINING__DEVICE")

    project.env["FOXHUNT_COSTS__FEE_BPS"] = "0.25"
    entries = project.plan()
    reads = {"baselines/walk_forward", "tlob/walk_forward", "tlob/release", *PPO}
    assert {entry["asset"] for entry in entries} == reads
    assert all("costs.fee_bps: 0.1 -> 0.25" in entry["reason"] for entry in entries)
    project.env.pop("FOXHUNT_COSTS__FEE_BPS")

    project.env["FOXHUNT_AUTOMATION__NIGHTLY_TIME"] = "03:00"
    assert project.plan() == []


def test_a_users_own_family_and_a_shared_layer(project: Project) -> None:
    assets = project.tree("assets")
    project.write("plain.py", OWN_FAMILY)
    project.append(
        "foxhunt.toml",
        """
        [models.plain]
        family = "plain:FAMILY"
        [models.plain.train]
        epochs = 1
        rows_per_epoch = 256
        """,
    )
    own = ["plain/training", "plain/walk_forward", "plain/release"]
    assert [asset for asset, _, _ in project.planned()] == own
    [run] = project.sync().runs
    assert sorted(run.assets) == sorted(own)
    assert len(project.releases("plain")) == 1
    assert project.plan() == []
    assert project.tree("assets") == assets

    unchanged = project.root / "unchanged.py"
    shutil.copy2(project.root / "plain.py", unchanged)
    wrap_result(project.root / "plain.py", "loss", "3.0 * ({})")
    entries = project.plan()
    assert [entry["asset"] for entry in entries] == own
    assert all("plain.py changed" in entry["reason"] for entry in entries)
    unchanged.replace(project.root / "plain.py")
    assert project.plan() == []

    layer = project.root / "foxhunt_pipeline/models/layers/attention.py"
    wrap_result(layer, "forward", "1.5 * ({})")
    entries = project.plan()
    assert {entry["asset"] for entry in entries} == {*TLOB, *own}
    assert all("models/layers/attention.py changed" in entry["reason"] for entry in entries)

    wrap_result(project.root / "foxhunt_pipeline/training/seeding.py", "seed_of", "({}) ^ 1")
    reasons = {e["asset"]: e["reason"] for e in project.plan()}
    assert {*TLOB, *own, *PPO} == reasons.keys()
    assert all("training/seeding.py changed" in reason for reason in reasons.values())
