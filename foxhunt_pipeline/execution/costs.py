"""What trading costs, in basis points of the value traded."""

from __future__ import annotations

from dataclasses import dataclass

BPS = 1e-4


@dataclass(frozen=True)
class Costs:
    """The ``costs`` section of the configuration: ``Costs(**task.config("costs"))``."""

    fee_bps: float
    slippage_bps: float
    """Beyond the touch, against the trader."""
    half_spread_bps: float
    """Half the spread where there are no quotes; with quotes the spread is the market's."""

    def rate(self, has_quotes: bool) -> float:
        """Cost of trading beyond the price of the fill, as a fraction of the value traded."""
        spread = 0.0 if has_quotes else self.half_spread_bps
        return (self.fee_bps + self.slippage_bps + spread) * BPS
