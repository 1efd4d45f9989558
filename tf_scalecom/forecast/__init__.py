"""Step time and traffic of a model on a cluster, predicted: `python -m tf_scalecom plan`."""

from tf_scalecom.forecast.advice import advice
from tf_scalecom.forecast.performance import Exchange, Hardware, StepTime
from tf_scalecom.forecast.ways import Forecast, Scenario, forecasts

__all__ = ["Exchange", "Forecast", "Hardware", "Scenario", "StepTime", "advice", "forecasts"]
