"""Power analysis: what a detection can reach with a degree and a share of Byzantine nodes, before anything runs."""

from __future__ import annotations

from bymi.power_analysis.byzantine_neighbour_counts import Setting
from bymi.power_analysis.forecast import Forecast, forecast
from bymi.power_analysis.ideal_neighbourhoods import Row

__all__ = ["Forecast", "Row", "Setting", "forecast"]
