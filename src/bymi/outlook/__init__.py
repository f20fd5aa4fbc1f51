"""What a detection can reach, said before anything runs."""

from __future__ import annotations

from bymi.outlook.cache import recall
from bymi.outlook.foresight import Outlook, forecast
from bymi.outlook.ideal import Row
from bymi.outlook.question import Question

__all__ = ["Outlook", "Question", "Row", "forecast", "recall"]
