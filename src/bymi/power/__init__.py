"""What a detection can reach, said before anything runs."""

from __future__ import annotations

from bymi.power.cache import recall
from bymi.power.forecast import Forecast, forecast
from bymi.power.ideal_neighbourhoods import Row
from bymi.power.setting import Setting

__all__ = ["Forecast", "Row", "Setting", "forecast", "recall"]
