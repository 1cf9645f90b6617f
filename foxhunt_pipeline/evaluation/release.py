"""Whether a trained model is released, and as what: refused, candidate or champion.

The decision is pure; publishing it is another's work. ``decision.json`` holds ``decision``,
``reason``, every gate (:class:`~foxhunt_pipeline.evaluation.gates.Gate`) and the model's
out-of-sample figures.

A champion is compared on rows that neither it nor the new model was trained on: its checkpoint
is scored again on the test spans of windows after its last training session, and where its own
walk forward is at hand (``task.champion_scores``, the ``model.npz`` of the scorecard that it was
released with), that stands for the sessions before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from foxhunt_pipeline.artifacts import Content, Item, Result, Task, digest_of
from foxhunt_pipeline.checkpoints.format import Checkpoint
from foxhunt_pipeline.checkpoints.format import load as load_checkpoint
from foxhunt_pipeline.datasets.manifest import PRODUCTION, DatasetManifest, Scaler, load
from foxhunt_pipeline.datasets.reader import Split, open_window
from foxhunt_pipeline.errors import CheckpointError, FoxhuntError
from foxhunt_pipeline.evaluation import gates
from foxhunt_pipeline.evaluation.gates import Floats, Gate, Judgement
from foxhunt_pipeline.evaluation.judge import stitched, window_items
from foxhunt_pipeline.evaluation.scores import (
    Paired,
    Portfolio,
    Scores,
    concatenate,
    difference,
    join,
    portfolio,
)
from foxhunt_pipeline.evaluation.walk_forward import CHECKPOINT, MODEL, score
from foxhunt_pipeline.execution.actions import ActionSpace
from foxhunt_pipeline.models.contract import ForecastFamily, Policy, settings_of
from foxhunt_pipeline.training.rebuild import module_from

CHAMPION, CANDIDATE, REFUSED = "champion", "candidate", "refused"
DECISION = "decision.json"
SAMPLE = 1024
"""Recent rows on which a checkpoint's outputs are looked at."""


def build(task: Task) -> Result:
    """Items ``decision`` (file ``decision.json``) and ``checkpoint``, which is production's item
    of the training stage (file ``model.safetensors``)."""
    production = task.input(f"{task.model}/training").items[PRODUCTION]
    walked = task.input(f"{task.model}/walk_forward")
    view = task.family.view
    baselines = list(
        window_items(task.input("baselines/walk_forward"), prefix=f"predictions/{view}")
    )
    mine = list(window_items(walked))
    champion = {"checkpoint": task.champion, "scores": task.champion_scores}

    def compute(folder: Path) -> Content:
        decision = decide(task, load(task), production, mine, baselines)
        decision["figures"] = walked.items["scorecard"].figures[MODEL]["overall"]
        text = json.dumps(decision, indent=2, allow_nan=False)
        (folder / DECISION).write_text(text + "\n", encoding="utf-8")
        return Content(digest_of(decision), decision)

    decision = task.item(
        "decision",
        inputs=[
            task.input("dataset").data_version,
            production.digest,
            *(item.digest for item in (*mine, walked.items["scorecard"], *baselines)),
        ],
        compute=compute,
        extra={
            "device": torch.device(task.device).type,
            "champion": {name: path and _sha256(path) for name, path in champion.items()},
        },
    )
    figures = {key: decision.figures[key] for key in ("decision", "reason")}
    return Result([decision, dataclasses.replace(production, name="checkpoint")], figures)


def decide(
    task: Task,
    manifest: DatasetManifest,
    production: Item,
    mine: list[Item],
    baselines: list[Item],
) -> dict[str, Any]:
    """The decision, its reason and its gates. Performance is judged only if honesty holds."""
    passed = list(honesty(task, manifest, task.path(production, CHECKPOINT)))
    honest = all(gate.passed for gate in passed)
    if honest:
        passed += performance(task, manifest, production, mine, baselines)
    failed = [gate for gate in passed if not gate.passed]
    decision = REFUSED if not honest else CANDIDATE if failed else CHAMPION
    return {
        "model": task.model,
        "decision": decision,
        "reason": "; ".join(f"{g.gate}: {_number(g.number)}: {g.detail}" for g in failed),
        "gates": [dataclasses.asdict(gate) for gate in passed],
    }


def _number(number: float | None) -> str:
    return "not measured" if number is None else f"{number:.4g}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Honesty -------------------------------------------------------------------------------------


def honesty(task: Task, manifest: DatasetManifest, path: Path) -> Iterator[Gate]:
    """Gates that say whether the checkpoint may be released at all."""
    view = task.family.view
    most = task.config("release")["max_left_out_sessions"]
    yield gates.fresh(manifest, view)
    yield gates.complete(manifest, view, most)
    first, checkpoint = gates.whole(path)
    yield first
    if checkpoint is None:
        return
    agreement = gates.agrees(checkpoint.header, manifest)
    yield gates.provenance(checkpoint.header, manifest)
    yield agreement

    def rebuild(saved: Checkpoint) -> nn.Module:
        return module_from(saved, task.family, task.device)

    try:
        module = rebuild(checkpoint)
    except FoxhuntError as error:
        yield Gate("rebuild", None, None, False, str(error))
        return
    yield gates.counted(module, checkpoint.header)
    if not agreement.passed:
        return
    split = open_window(task, manifest, PRODUCTION, view).validation

    def outputs(rebuilt: nn.Module) -> Floats:
        return outputs_of(task, rebuilt, checkpoint, split)

    yield from gates.sound(outputs(module))
    yield gates.reloads(checkpoint, rebuild, outputs)


@torch.inference_mode()
def outputs_of(task: Task, module: nn.Module, checkpoint: Checkpoint, split: Split) -> Floats:
    """(row, output): everything the module says of rows spread over a split; a policy is asked
    with each exposure in turn."""
    config = settings_of(task.family, checkpoint.header.config)
    rows = split.rows(config.context, labelled=False)
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), SAMPLE)).astype(np.int64)]
    x = torch.from_numpy(split.gather(rows, config.context)).to(task.device)
    if isinstance(task.family, ForecastFamily):
        said = task.family.predict(config, module(x))
        given = (said.point, said.quantiles, said.probabilities)
        parts = [part.flatten(1) for part in given if part is not None]
    else:
        exposures = ActionSpace().exposure_table(task.device)
        held = exposures[torch.arange(len(rows), device=exposures.device) % len(exposures)]
        policy: Policy = module(x, held)
        parts = [policy.logits, policy.value[:, None]]
    return np.asarray(torch.cat([part.double() for part in parts], dim=1).cpu().numpy())


# Performance ---------------------------------------------------------------------------------


def performance(
    task: Task,
    manifest: DatasetManifest,
    production: Item,
    mine: list[Item],
    baselines: list[Item],
) -> Iterator[Gate]:
    """Gates that say whether the release becomes champion."""
    evaluation = task.config("evaluation")
    judgement = Judgement(
        samples=evaluation["bootstrap_samples"],
        level=evaluation["significance"],
        seed=task.seed,
        horizon=max(manifest.views[task.family.view].horizons),
    )
    model = stitched(task, mine, MODEL)

    def against(name: str) -> Paired:
        return gates.compared(model, stitched(task, baselines, name))

    if isinstance(task.family, ForecastFamily):
        for name in ("mean", "last_value", "ridge"):
            yield gates.better_loss(name, judgement, against(name))
        yield gates.not_worse_net("flat", judgement, against("flat"))
    else:
        for name in ("flat", "buy_and_hold", "ridge"):
            yield gates.better_net(name, judgement, against(name))
    yield from against_champion(task, manifest, production, model, judgement)


def against_champion(
    task: Task,
    manifest: DatasetManifest,
    production: Item,
    model: Scores,
    judgement: Judgement,
) -> Iterator[Gate]:
    """Better than the champion, if there is one that is not this very checkpoint."""
    path = task.champion
    if path is None:
        yield Gate("champion", None, None, True, "there is no champion: the baselines decide")
        return
    if _sha256(path) == production.files[CHECKPOINT].sha256:
        yield Gate("champion", None, None, True, "this checkpoint is the champion")
        return
    paired, why = compare_champion(task, manifest, model, path)
    if not len(paired.ts):
        yield Gate(
            "champion", 0, 1, False, f"test rows to compare with the champion on, at least 1: {why}"
        )
    elif isinstance(task.family, ForecastFamily):
        yield gates.better_loss("champion", judgement, paired)
        yield gates.not_worse_net("champion", judgement, paired)
    else:
        yield gates.better_net("champion", judgement, paired)


def compare_champion(
    task: Task, manifest: DatasetManifest, model: Scores, path: Path
) -> tuple[Paired, str]:
    """The model minus the champion on rows unseen by both, and why there may be none."""
    record = task.champion_scores
    nothing = portfolio(model.take(np.zeros(len(model.ts), bool)))
    again, why = difference(nothing, nothing), ""
    try:
        rescored = score_champion(task, manifest, load_checkpoint(path))
        if rescored is None:
            why = "it was trained on, or after, every test session; a new session will tell"
        else:
            again = gates.compared(model, rescored)
    except FoxhuntError as error:
        why = f"it cannot be scored again ({error})"
    if record is None:
        return again, f"{why}; or promote by hand"
    kept = Portfolio.load(record)
    before = difference(portfolio(model.take(model.decided)), kept)
    return join([again, before.without(sorted(set(again.session.tolist())))]), why


def score_champion(task: Task, manifest: DatasetManifest, champion: Checkpoint) -> Scores | None:
    """The champion's checkpoint on the test spans after its last training session, scaled as it
    was trained; None where there are none.

    Raises :class:`~foxhunt_pipeline.errors.CheckpointError` where it cannot be rebuilt.
    """
    header = champion.header
    spec = manifest.require_view(header.view)
    if header.horizons != spec.horizons or not set(header.columns) <= set(spec.columns):
        raise CheckpointError(
            f"it reads {len(header.columns)} columns and forecasts {header.horizons} rows ahead, "
            f"which the dataset (horizons {spec.horizons}) no longer has",
        )
    newest = max(header.extra["train_sessions"])
    scaler = Scaler(header.center, header.scale)
    parts = []
    for window in manifest.windows_of(header.view):
        if window.test_sessions and window.test_sessions[0] > newest:
            data = open_window(task, manifest, window.name, header.view)
            rescaled = _rescale(data.test, header.columns, scaler)
            data = dataclasses.replace(
                data, validation=_rescale(data.validation, header.columns, scaler)
            )
            parts.append(score(task, champion, data, rescaled))
    return concatenate(parts) if parts else None


def _rescale(split: Split, columns: tuple[str, ...], scaler: Scaler) -> Split:
    """The same rows with a champion's columns and scaler."""
    segments = tuple(
        dataclasses.replace(
            segment,
            scaler=scaler,
            columns=np.array([segment.stream.columns.index(c) for c in columns], np.intp),
        )
        for segment in split.segments
    )
    return Split(segments, len(columns), split.n_horizons)
