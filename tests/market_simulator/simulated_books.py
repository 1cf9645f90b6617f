"""The one way in which these tests read simulated files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import databento as db
import numpy as np

SYMBOLS = ("SIMA", "SIMB")
SESSIONS = 3


def decoded(path: Path) -> tuple[db.DBNStore, np.ndarray]:
    """Metadata and a copy of the records of a file, read by Databento's own client."""
    store = db.DBNStore.from_bytes(path.read_bytes())
    return store, store.to_ndarray().copy()


def files(paths: list[Path], schema: str) -> list[Path]:
    return [path for path in paths if f".{schema}." in path.name]


@dataclass(frozen=True)
class Book:
    """The book of one instrument in one session at the end of each event, and its trades."""

    ts: np.ndarray
    bid: np.ndarray
    ask: np.ndarray
    bid_size: np.ndarray
    ask_size: np.ndarray
    bid_count: np.ndarray
    ask_count: np.ndarray
    trade_ts: np.ndarray
    trade_sign: np.ndarray
    trade_size: np.ndarray

    @property
    def mid(self) -> np.ndarray:
        """Ticks."""
        return (self.bid[:, 0] + self.ask[:, 0]) / 2 / 10**7

    @property
    def spread(self) -> np.ndarray:
        """Ticks."""
        return (self.ask[:, 0] - self.bid[:, 0]) // 10**7

    def imbalance(self, levels: int) -> np.ndarray:
        bids = self.bid_size[:, :levels].sum(axis=1)
        asks = self.ask_size[:, :levels].sum(axis=1)
        return (bids - asks) / (bids + asks)

    def at(self, ts: np.ndarray) -> np.ndarray:
        """Index of the book as it is known at each of ``ts``."""
        return np.searchsorted(self.ts, ts, side="right") - 1


def books(paths: list[Path]) -> list[Book]:
    """One book a session and instrument."""
    found = []
    for path in files(paths, "mbp-10"):
        _, records = decoded(path)
        for identifier in np.unique(records["instrument_id"]):
            own = records[records["instrument_id"] == identifier]
            last = own[(own["flags"] & 128) != 0]
            trades = own[own["action"] == b"T"]

            def ladder(name: str, rows: np.ndarray = last) -> np.ndarray:
                return np.stack([rows[f"{name}_{k:02d}"] for k in range(10)], axis=1).astype("i8")

            found.append(
                Book(
                    last["ts_recv"].astype("i8"),
                    *(ladder(f"{side}_px") for side in ("bid", "ask")),
                    *(ladder(f"{side}_sz") for side in ("bid", "ask")),
                    *(ladder(f"{side}_ct") for side in ("bid", "ask")),
                    trades["ts_recv"].astype("i8"),
                    np.where(trades["side"] == b"B", 1, -1),
                    trades["size"].astype("i8"),
                )
            )
    return found
