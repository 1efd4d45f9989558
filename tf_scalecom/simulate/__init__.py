"""Many learners in one process: what `python -m tf_scalecom simulate` runs.

A learner is what the rest of the package calls a replica. All learners hold the same weights, so
the model is kept once; each has its own gradient and residual, and they meet in the package's own
`algorithm.exchange`.
"""

from tf_scalecom.simulate.config import METHODS, SimulationConfig
from tf_scalecom.simulate.runs import run, run_all
from tf_scalecom.simulate.simulation import Simulation
from tf_scalecom.simulate.task import Task, load_task

__all__ = ["METHODS", "Simulation", "SimulationConfig", "Task", "load_task", "run", "run_all"]
