"""Step time and traffic of a model on a cluster, predicted: `python -m tf_scalecom plan`."""

from tf_scalecom.forecast.advice import advice
from tf_scalecom.forecast.performance import Cluster, Exchange, StepTime
from tf_scalecom.forecast.ways import Forecast, Scenario, forecasts

__all__ = ["Cluster", "Exchange", "Forecast", "Scenario", "StepTime", "advice", "forecasts"]
