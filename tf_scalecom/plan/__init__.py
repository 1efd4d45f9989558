"""Step time and traffic of a model on a cluster, predicted: `python -m tf_scalecom plan`."""

from tf_scalecom.plan.advice import advice
from tf_scalecom.plan.forecast import Forecast, Scenario, forecasts
from tf_scalecom.plan.performance import Cluster, Exchange, StepTime

__all__ = ["Cluster", "Exchange", "Forecast", "Scenario", "StepTime", "advice", "forecasts"]
