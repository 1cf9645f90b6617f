"""Gates of a release: each a number, a bound, and a verdict.

**Honesty** gates ask whether the checkpoint is what it says it is and reads the data as it stands.
One that fails refuses the release. **Performance** gates ask whether it is worth serving. One that
fails leaves the release a candidate.

What the performance gates guard against is a champion without skill. Their null is a union: *the
model is no better than the mean forecast, or no better than no change, or no better than ridge,
…*. It is rejected only when each part is rejected by itself at ``level``, an
intersection-union test (Berger 1982), whose error is at most ``level`` however many baselines
there are and however dependent they are: no correction for their number is due. On a martingale
the part "no better than no change" is true with room to spare, since the square of whatever is
forecast adds to the expected loss, so that false champions are rarer still.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from foxhunt_pipeline.checkpoints.format import Checkpoint, Header, load, save
from foxhunt_pipeline.datasets.manifest import PRODUCTION, DatasetManifest
from foxhunt_pipeline.errors import FoxhuntError
from foxhunt_pipeline.evaluation.scores import Paired, Scores, difference, pair, portfolio
from foxhunt_pipeline.evaluation.significance import MeanTest, mean_test
from foxhunt_pipeline.models.contract import parameter_count

Floats = NDArray[np.float64]
Outputs = Callable[[nn.Module], Floats]
"""A module's outputs on the sample of rows, (row, output)."""

LEAST_SPREAD = 1e-6
"""Standard deviation, in units of the model's outputs, below which an output is constant."""
LIBRARIES = ("python", "torch", "numpy", "safetensors")


@dataclass(frozen=True)
class Gate:
    """One condition: the number found, the bound that it is held to, the verdict.

    ``number`` is None where nothing could be measured, ``bound`` where there is none;
    ``detail`` says what was measured, in which unit, and on which side of the bound it must be.
    """

    gate: str
    number: float | None
    bound: float | None
    passed: bool
    detail: str


def at_most(gate: str, number: float, bound: float, detail: str) -> Gate:
    return Gate(gate, number, bound, number <= bound, f"{detail}; at most {bound:g}")


def at_least(gate: str, number: float, bound: float, detail: str) -> Gate:
    return Gate(gate, number, bound, number >= bound, f"{detail}; at least {bound:g}")


# Honesty -------------------------------------------------------------------------------------


def whole(path: Path) -> tuple[Gate, Checkpoint | None]:
    """The file loads: nothing missing, nothing infinite, enough numbers for its parameters."""
    try:
        checkpoint = load(path)
    except FoxhuntError as error:
        size = path.stat().st_size if path.is_file() else 0
        return Gate("whole", size, None, False, f"bytes of the file; {error}"), None
    held = sum(t.numel() for t in checkpoint.tensors.values())
    detail = "numbers held, for the parameters counted in the header"
    return at_least("whole", held, checkpoint.header.parameter_count, detail), checkpoint


def counted(module: nn.Module, header: Header) -> Gate:
    """The module has as many parameters as the header says."""
    found = parameter_count(module)
    return Gate(
        "parameter_count",
        found,
        header.parameter_count,
        found == header.parameter_count,
        "parameters of the rebuilt module; equal to the header's",
    )


def agrees(header: Header, manifest: DatasetManifest) -> Gate:
    """Columns, their order, horizons and scaler are those of the dataset."""
    spec = manifest.views[header.view]
    scaler = manifest.window(PRODUCTION).views[header.view].scaler
    wrong = [
        *_unlike("column", header.columns, spec.columns),
        *_unlike("horizon", header.horizons, spec.horizons),
        *_unlike("center", header.center, scaler.center),
        *_unlike("scale", header.scale, scaler.scale),
    ]
    named = f" ({'; '.join(wrong[:3])}{'; …' if len(wrong) > 3 else ''})" if wrong else ""
    return at_most("columns", len(wrong), 0, f"entries unlike the dataset's{named}")


def _unlike(what: str, have: Sequence[Any], want: Sequence[Any]) -> list[str]:
    if len(have) != len(want):
        return [f"{len(have)} {what}s for {len(want)}"]
    return [
        f"{what} {number} is {a}, not {b}"
        for number, (a, b) in enumerate(zip(have, want, strict=True))
        if a != b
    ]


def sound(outputs: Floats) -> list[Gate]:
    """Outputs on recent rows are finite, and at least one of them varies."""
    finite = np.isfinite(outputs)
    rows = f"on {len(outputs)} recent rows"
    spreads = [float(np.std(column[np.isfinite(column)])) for column in outputs[:, finite.any(0)].T]
    spread = max(spreads, default=0.0)
    return [
        at_most("finite", int(np.sum(~finite)), 0, f"outputs that are NaN or infinite {rows}"),
        at_least("varies", spread, LEAST_SPREAD, f"standard deviation of the outputs {rows}"),
    ]


def reloads(
    checkpoint: Checkpoint, rebuild: Callable[[Checkpoint], nn.Module], outputs: Outputs
) -> Gate:
    """Saved, loaded and rebuilt again, the model says exactly the same."""
    first = outputs(rebuild(checkpoint))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "again.safetensors"
        save(checkpoint, path)
        again = outputs(rebuild(load(path)))
    same = np.array_equal(first, again, equal_nan=True)
    worst = 0.0 if same else float(np.nanmax(np.abs(first - again), initial=0.0))
    return Gate("reload", worst, 0.0, same, "largest change of an output after reloading; none")


def provenance(header: Header, manifest: DatasetManifest) -> Gate:
    """Code, data and library versions are there, and the data is the dataset's."""
    window = manifest.window(PRODUCTION)
    faults = {
        "code version": not header.code_version,
        "data version of production": header.data_versions.get(PRODUCTION)
        != window.digest(header.view),
        "training sessions": tuple(header.extra.get("train_sessions", ())) != window.train_sessions,
        "device": not header.device,
        "precision": not header.precision,
        **{f"version of {name}": not header.libraries.get(name) for name in LIBRARIES},
    }
    wrong = [name for name, fault in faults.items() if fault]
    named = f" ({', '.join(wrong)})" if wrong else ""
    return at_most("provenance", len(wrong), 0, f"entries missing or not the dataset's{named}")


def fresh(manifest: DatasetManifest, view: str) -> Gate:
    """The newest session that was delivered is in the production window."""
    trained = trained_sessions(manifest, view)
    later = sorted(s for s in {*manifest.sessions, *manifest.left_out} if s > trained[-1])
    reasons = {**manifest.left_out, **manifest.views[view].missing}
    named = "".join(f" ({s}: {reasons.get(s, 'not in the window')})" for s in later[:3])
    return at_most("newest_session", len(later), 0, f"sessions after {trained[-1]}{named}")


def complete(manifest: DatasetManifest, view: str, most: int) -> Gate:
    """No more gaps than allowed between the first and the newest session trained on."""
    trained = trained_sessions(manifest, view)
    reasons = {**manifest.left_out, **manifest.views[view].missing}
    gaps = sorted(s for s in reasons if s >= trained[0])
    named = "".join(f" ({s}: {reasons[s]})" for s in gaps[:3])
    detail = f"sessions left out since {trained[0]}{named}"
    return at_most("left_out_sessions", len(gaps), most, detail)


def trained_sessions(manifest: DatasetManifest, view: str) -> list[str]:
    """Sessions of which production has rows of the view, ascending."""
    part = manifest.window(PRODUCTION).views[view]
    return sorted({manifest.streams[s.stream].session for s in (*part.train, *part.validation)})


# Performance ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judgement:
    """How significance is judged: the section ``evaluation``, a seed, the longest horizon."""

    samples: int
    level: float
    seed: int
    horizon: int

    def test(self, values: Floats, sessions: NDArray[np.str_], overlap: bool) -> MeanTest:
        """Is the mean above zero? ``overlap``: rows share returns with the rows after them."""
        known = np.isfinite(values)
        numbers = np.unique(sessions[known], return_inverse=True)[1]
        return mean_test(
            values[known],
            numbers.astype(np.int64),
            samples=self.samples,
            level=self.level,
            seed=self.seed,
            least_block=self.horizon if overlap else 1,
        )


def compared(a: Scores, b: Scores) -> Paired:
    """Two contestants on the rows on which both decided, ``a`` minus ``b``."""
    mine, theirs = pair(a, b)
    return difference(portfolio(mine), portfolio(theirs))


def better_loss(name: str, judgement: Judgement, paired: Paired) -> Gate:
    """The loss is lower, beyond noise."""
    result = judgement.test(-paired.loss, paired.session, overlap=True)
    return at_most(
        f"loss_vs_{name}",
        result.p_value,
        judgement.level,
        f"p-value of a loss lower than {name}'s, by {_figures(result, 1, '')}",
    )


def better_net(name: str, judgement: Judgement, paired: Paired) -> Gate:
    """The net P&L is higher, beyond noise."""
    result = judgement.test(paired.net, paired.session, overlap=False)
    return at_most(
        f"net_vs_{name}",
        result.p_value,
        judgement.level,
        f"p-value of a net P&L above {name}'s, by {_figures(result, result.rows * 1e4, ' bps')}",
    )


def not_worse_net(name: str, judgement: Judgement, paired: Paired) -> Gate:
    """The net P&L is not lower beyond noise."""
    result = judgement.test(-paired.net, paired.session, overlap=False)
    return Gate(
        f"net_vs_{name}",
        result.p_value,
        judgement.level,
        result.p_value > judgement.level,
        f"p-value of a net P&L below {name}'s, by {_figures(result, result.rows * 1e4, ' bps')}; "
        f"above {judgement.level:g}",
    )


def _figures(result: MeanTest, unit: float, name: str) -> str:
    mean, low, high = (value * unit for value in (result.mean, result.low, result.high))
    return f"{mean:.4g}{name} [{low:.4g}, {high:.4g}] over {result.rows} rows"
