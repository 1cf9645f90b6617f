"""Simulated markets that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_books import SESSIONS, SYMBOLS, Book, books

from foxhunt_pipeline.market.simulator import simulate


@pytest.fixture(scope="session")
def market(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The default market: files of 3 sessions of 2 instruments."""
    return simulate(tmp_path_factory.mktemp("market"), sessions=SESSIONS, symbols=SYMBOLS, seed=7)


@pytest.fixture(scope="session")
def fair(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same as a martingale."""
    folder = tmp_path_factory.mktemp("fair")
    return simulate(folder, sessions=SESSIONS, symbols=SYMBOLS, seed=7, martingale=True)


@pytest.fixture(scope="session")
def market_books(market: list[Path]) -> list[Book]:
    return books(market)


@pytest.fixture(scope="session")
def fair_books(fair: list[Path]) -> list[Book]:
    return books(fair)
