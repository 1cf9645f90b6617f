"""Market rules over every row of a table.

Each rule is a vectorised predicate: a boolean per row, true where the row is at fault.
:func:`profile` applies the rules of a table's kind and gives their counts, shares, extremes and
first offenders, and the rows to quarantine with their reason.

What is a fault and what is only remarkable:

* A row is quarantined only where no reading of it is valid: a print without a price or size, a
  price of zero or less where the product forbids it, a bar that contradicts itself, a time outside
  the session, a print far beyond all that was printed before.
* Crossed and locked books, duplicates, large moves and silences happen in sound markets. They
  are counted, judged as shares, and never quarantined. Prints that are equal in every field can
  be separate fills.
* A book is judged where its event ends (flag ``F_LAST``), unless the publisher doubts it
  (``F_MAYBE_BAD_BOOK``); within an event it may be crossed.
* Flags of the publisher (``F_PUBLISHER_SPECIFIC``) are counted, not judged: their meaning differs.
* ``ts_recv`` may be earlier than ``ts_event``: clocks differ. The median skew is reported.

Quarantine is causal: whether a row is quarantined depends on that row and earlier ones, so
cleaning tells a feature nothing about its future.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from foxhunt_pipeline.market.schemas import SCHEMAS
from foxhunt_pipeline.validation.kinds import KINDS, Kind

Mask = npt.NDArray[np.bool_]
Times = npt.NDArray[np.int64]

F_LAST = 1 << 7
F_MAYBE_BAD_BOOK = 1 << 2
F_PUBLISHER_SPECIFIC = 1 << 1
TRADE = ord("T")
MINUTE_NS = 60 * 10**9
EXAMPLES = 5
"""First offenders kept of each fault."""


QUARANTINE = (
    "outside_session",
    "undefined_price",
    "non_positive_price",
    "zero_size",
    "inconsistent_bar",
    "outlier",
)
"""Faults whose rows are quarantined. A row with several has the first as its reason."""

SHORT, LONG, SPREAD = 5, 51, 501
"""Prints before a print that it is compared with: two medians, and the deviation from the
longer. A wrong print leaves both medians; after a true jump three prints move the shorter."""
MAD_TO_SIGMA = 1.4826
"""Standard deviations in a median absolute deviation, for normal data (Hampel 1974)."""


@dataclass(frozen=True)
class Hours:
    """A session's bounds and regular hours, ns since 1970, ends exclusive."""

    start: int
    end: int
    open: int
    close: int


@dataclass(frozen=True)
class Prices:
    """What is known of an instrument's prices and the band that its prints stay in.

    ``tick`` is the price step in 1e-9, None where unknown: then the smallest move printed before.
    """

    positive: bool
    outlier_share: float
    outlier_sigmas: float
    tick: int | None = None


@dataclass(frozen=True)
class Profile:
    """Figures of a table, first offenders by fault, and quarantined rows (row, reason)."""

    figures: Mapping[str, float]
    offenders: Mapping[str, list[dict[str, Any]]]
    quarantine: pl.DataFrame


def profile(rows: pl.DataFrame, schema: str, hours: Hours, prices: Prices) -> Profile:
    """Apply the rules of ``schema`` to every row of a table.

    ``rows`` has the columns of ``market/tables``; at least one row an instrument and session.
    Takes about 0.1 s for half a million trades.
    """
    kind = KINDS[schema]
    interval = SCHEMAS[schema].interval
    ts = _ns(rows[SCHEMAS[schema].key])
    ends = _ns(rows["ts_close"]) if interval else ts
    faults: dict[str, Mask] = {
        "out_of_order": _out_of_order(ts, strict=interval > 0),
        "duplicate": _duplicate(rows),
    }
    figures: dict[str, float] = {"rows": rows.height}
    marks: dict[str, Mask] = {}
    if kind == "definitions":
        faults["expired"] = _expired(rows, hours)
    else:
        known = ts + max(interval - 1, 0)  # a bar belongs to the session of its last instant
        faults["outside_session"] = (known < hours.start) | (known >= hours.end)
        minutes, marks["silence"] = _silence(ts, ends, hours)
        figures["longest_silence_minutes"] = minutes
    if kind == "bars":
        faults |= _bar_faults(rows, interval, prices)
    elif kind in ("trades", "quotes"):
        faults |= _print_faults(rows, prices)
        figures["clock_skew_ms"] = _skew_ms(ts, _ns(rows["ts_event"]))
        flags = rows["flags"].to_numpy()
        figures["publisher_flagged"] = int(((flags & F_PUBLISHER_SPECIFIC) != 0).sum())
    if kind == "quotes":
        regular = (ts >= hours.open) & (ts < hours.close)
        judged, books = _book_faults(rows, regular, prices)
        faults["non_positive_price"] |= books.pop("non_positive_quote")
        faults |= books
        figures |= judged
    if kind != "definitions":
        share, marks["move"] = _largest_move(rows, kind)
        figures["largest_move_share"] = share
    quarantine = _quarantine(faults, rows.height)
    figures |= {name: int(mask.sum()) for name, mask in faults.items()}
    figures |= _shares(figures, quarantine.height)
    columns = [c for c in _SHOWN if c in rows.columns]
    offenders = {name: _examples(rows, mask, columns) for name, mask in (faults | marks).items()}
    offenders["quarantined"] = _examples(
        rows, _mask(quarantine["row"].to_numpy(), rows.height), columns
    )
    return Profile(figures, offenders, quarantine)


_SHOWN = (
    *("ts_recv", "ts_event", "price", "size", "sequence", "bid_px_00", "ask_px_00"),
    *("open", "high", "low", "close", "volume", "raw_symbol", "expiration"),
)
"""Columns of an offender that are shown."""


def outliers(reference: pl.Series, tested: pl.Series, prices: Prices) -> Mask:
    """Prices far beyond all printed before them.

    ``reference`` and ``tested`` are float64 of 1e-9, one a print, in order. A price is an outlier
    if it is further than ``outlier_share`` from the median of the last 51 *and* of the last 5
    references before it, and further than ``outlier_sigmas`` robust standard deviations from the
    former, a deviation being at least one tick. The first five prints are never outliers.
    """
    if reference.is_empty() or _within_band(reference, tested, prices.outlier_share):
        return np.zeros(reference.len(), np.bool_)
    share = prices.outlier_share
    frame = pl.DataFrame({"r": reference, "p": tested}).with_columns(
        long=_trailing_median(pl.col("r"), LONG), short=_trailing_median(pl.col("r"), SHORT)
    )
    far = (pl.col("p") - pl.col("long")).abs()
    beyond = frame.select(
        (far > share * pl.col("long").abs())
        & ((pl.col("p") - pl.col("short")).abs() > share * pl.col("short").abs())
    ).to_series()
    if not beyond.any():
        return np.zeros(reference.len(), np.bool_)
    moves = pl.col("r").diff().abs()
    tick = (
        pl.lit(float(prices.tick))
        if prices.tick
        else pl.when(moves > 0).then(moves).shift(1).cum_min().forward_fill()
    )
    sigma = MAD_TO_SIGMA * _trailing_median((pl.col("r") - pl.col("long")).abs(), SPREAD)
    return (
        frame.select(
            (
                beyond
                & (far > prices.outlier_sigmas * pl.max_horizontal(sigma, tick))
                & tick.is_not_null()
            ).fill_null(False)
        )
        .to_series()
        .to_numpy()
    )


def _within_band(reference: pl.Series, tested: pl.Series, share: float) -> bool:
    """Whether all prices are so close together that none can be an outlier."""
    low = min(_float(reference.min()), _float(tested.min()))
    high = max(_float(reference.max()), _float(tested.max()))
    return low > 0 and high - low <= share * low


def _trailing_median(values: pl.Expr, window: int) -> pl.Expr:
    return values.shift(1).rolling_median(window, min_samples=SHORT)


def _out_of_order(ts: Times, *, strict: bool) -> Mask:
    late = np.zeros(len(ts), np.bool_)
    late[1:] = ts[1:] <= ts[:-1] if strict else ts[1:] < ts[:-1]
    return late


def _duplicate(rows: pl.DataFrame) -> Mask:
    """Rows equal in every column to an earlier one."""
    return ~rows.hash_rows().is_first_distinct().to_numpy()


def _silence(ts: Times, ends: Times, hours: Hours) -> tuple[float, Mask]:
    """Longest time in regular hours without a row, in minutes, and the row before it."""
    order = np.argsort(ts, kind="stable")
    starts = np.append(np.clip(ts[order], hours.open, hours.close), hours.close)
    quiet_from = np.concatenate(([hours.open], np.clip(ends[order], hours.open, hours.close)))
    gaps = starts - np.maximum.accumulate(quiet_from)
    longest = int(np.argmax(gaps))
    before = order[longest - 1 : longest] if longest else order[:0]
    return max(int(gaps[longest]), 0) / MINUTE_NS, _mask(before, len(ts))


def _skew_ms(ts_recv: Times, ts_event: Times) -> float:
    return float(np.median(ts_recv - ts_event)) / 1e6 if len(ts_recv) else 0.0


def _print_faults(rows: pl.DataFrame, prices: Prices) -> dict[str, Mask]:
    """Faults of prints: every trade, or the trades among quotes."""
    printed = (
        rows["action"].to_numpy() == TRADE
        if "action" in rows.columns
        else np.ones(rows.height, np.bool_)
    )
    undefined = printed & rows["price"].is_null().to_numpy()
    non_positive = printed & _non_positive(rows["price"], prices)
    sound = np.flatnonzero(printed & ~undefined & ~non_positive)
    price = rows["price"].gather(sound).cast(pl.Float64)
    return {
        "undefined_price": undefined,
        "non_positive_price": non_positive,
        "zero_size": printed & (rows["size"] == 0).to_numpy(),
        "outlier": _mask(sound[outliers(price, price, prices)], rows.height),
    }


def _book_faults(
    rows: pl.DataFrame, regular: Mask, prices: Prices
) -> tuple[dict[str, float], dict[str, Mask]]:
    """Books judged at the end of their event: crossed, locked, and levels out of order."""
    flags = rows["flags"].to_numpy()
    judged = ((flags & F_LAST) != 0) & ((flags & F_MAYBE_BAD_BOOK) == 0)
    bid, ask = rows["bid_px_00"], rows["ask_px_00"]
    crossed = judged & _true(bid > ask)
    locked = judged & _true(bid == ask)
    levels = sum(c.startswith("bid_px_") for c in rows.columns)
    unordered = np.zeros(rows.height, np.bool_)
    for upper, lower in zip(range(levels - 1), range(1, levels), strict=True):
        unordered |= _true(rows[f"bid_px_{upper:02d}"] <= rows[f"bid_px_{lower:02d}"])
        unordered |= _true(rows[f"ask_px_{upper:02d}"] >= rows[f"ask_px_{lower:02d}"])
    figures: dict[str, float] = {
        "books_regular": int((judged & regular).sum()),
        "books_outside": int((judged & ~regular).sum()),
    }
    return figures, {
        "crossed_regular": crossed & regular,
        "crossed_outside": crossed & ~regular,
        "locked_regular": locked & regular,
        "locked_outside": locked & ~regular,
        "unordered_levels": judged & unordered,
        "non_positive_quote": _non_positive(bid, prices) | _non_positive(ask, prices),
    }


def _bar_faults(rows: pl.DataFrame, interval: int, prices: Prices) -> dict[str, Mask]:
    open_, high, low, close = (rows[c] for c in ("open", "high", "low", "close"))
    undefined = (
        rows.select(pl.any_horizontal(pl.col("open", "high", "low", "close").is_null()))
        .to_series()
        .to_numpy()
    )
    non_positive = _non_positive(low, prices)
    inconsistent = (
        _true(low > open_) | _true(low > close) | _true(high < open_) | _true(high < close)
    )
    ts = _ns(rows["ts_event"])
    sound = np.flatnonzero(~undefined & ~non_positive & ~inconsistent)
    price = close.gather(sound).cast(pl.Float64)
    beyond = outliers(price, high.gather(sound).cast(pl.Float64), prices)
    beyond |= outliers(price, low.gather(sound).cast(pl.Float64), prices)
    return {
        "undefined_price": undefined,
        "non_positive_price": non_positive,
        "inconsistent_bar": inconsistent,
        "misaligned_bar": (ts % interval != 0) | (_ns(rows["ts_close"]) - ts != interval),
        "outlier": _mask(sound[beyond], rows.height),
    }


def _expired(rows: pl.DataFrame, hours: Hours) -> Mask:
    """Definitions of instruments that had expired when the session began."""
    expiration = rows["expiration"].cast(pl.Datetime("ns", "UTC")).cast(pl.Int64)
    return _true(expiration < hours.start)


def _largest_move(rows: pl.DataFrame, kind: Kind) -> tuple[float, Mask]:
    """Largest move between neighbouring prints, as a share of the earlier, and its row."""
    if kind == "bars":
        prints = rows["close"]
        index = np.arange(rows.height)
    else:
        printed = rows["price"].is_not_null()
        if kind == "quotes":
            printed &= rows["action"] == TRADE
        index = np.flatnonzero(printed.to_numpy())
        prints = rows["price"].gather(index)
    price = prints.cast(pl.Float64).fill_null(np.nan).to_numpy()
    known = np.isfinite(price) & (price != 0)
    index, price = index[known], price[known]
    if len(price) < 2:
        return 0.0, np.zeros(rows.height, np.bool_)
    moves = np.abs(np.diff(price) / price[:-1])
    largest = int(np.argmax(moves))
    return float(moves[largest]), _mask(index[largest + 1 : largest + 2], rows.height)


def _quarantine(faults: Mapping[str, Mask], height: int) -> pl.DataFrame:
    """Rows (uint32, ascending) and reason of each."""
    code = np.full(height, len(QUARANTINE), np.int8)
    for i, name in reversed(list(enumerate(QUARANTINE))):
        if name in faults:
            code[faults[name]] = i
    rows = np.flatnonzero(code < len(QUARANTINE))
    return pl.DataFrame(
        {"row": rows.astype(np.uint32), "reason": [QUARANTINE[c] for c in code[rows]]},
        schema={"row": pl.UInt32, "reason": pl.String},
    )


def _shares(figures: Mapping[str, float], quarantined: int) -> dict[str, float]:
    rows = figures["rows"]
    shares = {
        "quarantined": quarantined,
        "quarantined_share": _share(quarantined, rows),
        "duplicate_share": _share(figures["duplicate"], rows),
    }
    if "books_regular" in figures:
        for fault in ("crossed", "locked"):
            for phase in ("regular", "outside"):
                shares[f"{fault}_{phase}_share"] = _share(
                    figures[f"{fault}_{phase}"], figures[f"books_{phase}"]
                )
    return shares


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _examples(rows: pl.DataFrame, mask: Mask, columns: list[str]) -> list[dict[str, Any]]:
    """The first rows at fault: row number and what it says, times as text."""
    first = np.flatnonzero(mask)[:EXAMPLES]
    if not len(first):
        return []
    shown = rows.select(columns)[first.tolist()].with_columns(
        pl.col(pl.Datetime("ns", "UTC")).dt.strftime("%Y-%m-%dT%H:%M:%S%.9fZ")
    )
    return [
        {"row": int(row), **values}
        for row, values in zip(first, shown.iter_rows(named=True), strict=True)
    ]


def _non_positive(price: pl.Series, prices: Prices) -> Mask:
    return _true(price <= 0) if prices.positive else np.zeros(price.len(), np.bool_)


def _true(values: pl.Series) -> Mask:
    """A comparison as a mask: undefined compares as false."""
    return values.fill_null(False).to_numpy()


def _mask(rows: npt.NDArray[Any], height: int) -> Mask:
    mask = np.zeros(height, np.bool_)
    mask[rows] = True
    return mask


def _ns(times: pl.Series) -> Times:
    """Times as ns since 1970; an undefined time is 0, outside every session."""
    return times.cast(pl.Datetime("ns", "UTC")).cast(pl.Int64).fill_null(0).to_numpy()


def _float(value: Any) -> float:
    return float("nan") if value is None else float(value)
