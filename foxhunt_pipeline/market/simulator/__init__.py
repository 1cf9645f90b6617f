"""A simulated market, written as Databento would deliver it.

A seeded limit order book with volatility regimes, clustered order flow and a hidden pressure that
shows in depth and trade signs and foretells the mid; or, on request, foretells nothing.
"""

from foxhunt_pipeline.market.simulator.job import DATASET, SCHEMAS, simulate

__all__ = ["DATASET", "SCHEMAS", "simulate"]
