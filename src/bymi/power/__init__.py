"""Power analysis: what a detection can reach with a degree and a share of Byzantine nodes, before anything runs."""

from __future__ import annotations

from bymi.power.forecast import Forecast, forecast
from bymi.power.ideal_neighbourhoods import Row
from bymi.power.setting import Setting

__all__ = ["Forecast", "Row", "Setting", "forecast"]
