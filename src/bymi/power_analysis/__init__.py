"""Power analysis: what a detection can reach with a degree and a share of Byzantine nodes, before anything runs."""

from __future__ import annotations

from bymi.power_analysis.forecast import Forecast, forecast
from bymi.power_analysis.ideal_neighbourhoods import Row
from bymi.power_analysis.network_setting import Setting

__all__ = ["Forecast", "Row", "Setting", "forecast"]
