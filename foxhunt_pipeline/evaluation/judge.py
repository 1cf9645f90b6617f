"""Decisions on a test span, brought before the one judge: losses and fills, row by row.

The primary loss of a row is its relative squared error, the mean over horizons of
``((actual return - expected return) / scale)²`` with the scale the root mean square of the
training rows' returns: 1 is what forecasting "no change" loses. It is a proper loss for the mean,
and on a martingale nothing has a lower expected loss than no change, however well volatility, or
the already known part of a smoothed label, can be foretold. Class losses can be lowered by
both, so they are reported and decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_pipeline.artifacts import Artifact, Content, Item, Task, digest_of
from foxhunt_pipeline.datasets.manifest import ViewSpec
from foxhunt_pipeline.datasets.reader import Split
from foxhunt_pipeline.evaluation.backtest import round_trip, targets_of
from foxhunt_pipeline.evaluation.scores import Scores, concatenate, figures, portfolio
from foxhunt_pipeline.execution.costs import Costs
from foxhunt_pipeline.execution.fills import backtest, value

Floats = NDArray[np.float64]


def loss_scale(train: Split) -> Floats:
    """(horizon,): root mean square of the training rows' returns; 1 where they never moved."""
    y = train.take("y", train.rows(1)).astype(np.float64)
    scale = np.sqrt(np.mean(y**2, axis=0)) if len(y) else np.zeros(train.n_horizons)
    return np.where(scale > 0, scale, 1.0)


def judge_forecast(
    test: Split,
    rows: NDArray[np.int64],
    forecast: NDArray[Any],
    costs: Costs,
    scale: Floats,
    probabilities: NDArray[Any] | None = None,
) -> Scores:
    """Losses of a forecast, and the fills of the rule that trades it.

    rows: (r,) of ``test.rows(context, labelled=False)``; forecast: (r, horizon) expected log
    returns; probabilities: (r, horizon, 3); scale: of :func:`loss_scale`.
    """
    targets = np.zeros(len(rows))
    for number, mine in _by_segment(test, rows):
        quoted = test.segments[number].stream.has_quotes
        cost = round_trip(test.take("px", rows[mine]), costs, quoted)
        targets[mine] = targets_of(forecast[mine, -1], cost)
    return judge(test, rows, targets, costs, forecast, probabilities, scale)


def judge(
    test: Split,
    rows: NDArray[np.int64],
    targets: Floats,
    costs: Costs,
    forecast: NDArray[Any] | None = None,
    probabilities: NDArray[Any] | None = None,
    scale: Floats | None = None,
) -> Scores:
    """Fills of targets, (r,) in lots, and the losses of a forecast if there is one.

    The scores cover every row of the test span; rows not among those given are undecided and
    aim at nothing.
    """
    parts: list[Scores] = []
    chosen = dict(_by_segment(test, rows))
    for number, segment in enumerate(test.segments):
        mine = chosen.get(number, slice(0, 0))
        place = test.locate(rows[mine])[1] - segment.start
        span = slice(segment.start, segment.stop)
        n, h = segment.stop - segment.start, test.n_horizons
        aims, decided = np.zeros(n), np.zeros(n, bool)
        expected, classes = np.full((n, h), np.nan), np.full((n, h, 3), np.nan)
        aims[place], decided[place] = targets[mine], True
        if forecast is not None:
            expected[place] = forecast[mine]
        if probabilities is not None:
            classes[place] = probabilities[mine]
        filled = backtest(value(segment.px[span], costs, segment.stream.has_quotes), aims)
        actual = np.asarray(segment.y[span], np.float32)
        loss = np.mean(((actual - expected) / (1.0 if scale is None else scale)) ** 2, axis=1)
        parts.append(
            Scores(
                streams=(segment.stream.id,),
                stream=np.zeros(n, np.int32),
                ts=np.asarray(segment.ts[span], np.int64),
                decided=decided,
                actual=actual,
                trend=segment.trend[span].astype(np.int8),
                forecast=expected.astype(np.float32),
                probabilities=classes.astype(np.float32),
                loss=loss.astype(np.float32),
                position=filled.position.astype(np.float32),
                gross=filled.gross.astype(np.float32),
                cost=filled.cost.astype(np.float32),
                turnover=filled.turnover.astype(np.float32),
            )
        )
    return concatenate(parts)


def _by_segment(test: Split, rows: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """(segment number, its part of the ascending rows) for segments that have any."""
    owner = test.locate(rows)[0]
    edges = np.flatnonzero(np.diff(owner, prepend=-1, append=-1))
    for start, stop in pairwise(edges):
        yield int(owner[start]), slice(start, stop)


# Items ---------------------------------------------------------------------------------------


def write(folder: Path, scores: Mapping[str, Scores]) -> Content:
    """A window's item: one file a contestant."""
    for name, rows in scores.items():
        rows.save(folder / f"{name}.npz")
    counts = {name: int(rows.decided.sum()) for name, rows in scores.items()}
    return Content(
        digest_of({name: rows.digest for name, rows in scores.items()}), {"decided": counts}
    )


def window_items(artifact: Artifact, prefix: str = "predictions") -> Iterator[Item]:
    """The items of the windows, in time order."""
    for name, item in artifact.items.items():
        if name.rpartition("/")[0] == prefix:
            yield item


def stitched(task: Task, items: Sequence[Item], contestant: str) -> Scores:
    """A contestant's rows of all windows."""
    return concatenate([Scores.load(task.path(i, f"{contestant}.npz")) for i in items])


def scorecard(
    task: Task,
    name: str,
    items: Sequence[Item],
    contestants: Sequence[str],
    spec: ViewSpec,
    sessions_per_year: float,
) -> Item:
    """An item of figures overall, by window and by session, with a file ``{contestant}.npz`` of
    the stitched :class:`~foxhunt_pipeline.evaluation.scores.Portfolio`."""

    def compute(folder: Path) -> Content:
        found: dict[str, Any] = {}
        for contestant in contestants:
            windows = {
                item.name.rpartition("/")[2]: Scores.load(task.path(item, f"{contestant}.npz"))
                for item in items
            }
            whole = concatenate(list(windows.values()))
            portfolio(whole.take(whole.decided)).save(folder / f"{contestant}.npz")

            def judged(rows: Scores) -> dict[str, Any]:
                return figures(rows, spec.horizons, sessions_per_year)

            found[contestant] = {
                "overall": judged(whole),
                "windows": {window: judged(rows) for window, rows in windows.items()},
                "sessions": {
                    day: judged(rows.of_sessions([day]))
                    for rows in windows.values()
                    for day in rows.sessions
                },
            }
        return Content(digest_of([item.digest for item in items], found), found)

    return task.item(
        name,
        inputs=[item.digest for item in items],
        compute=compute,
        extra={"sessions_per_year": sessions_per_year, "horizons": list(spec.horizons)},
    )
