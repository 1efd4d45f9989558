"""Many learners in one process: what `python -m tf_scalecom simulate` runs.

A learner is what the rest of the package calls a replica. All learners hold the same weights, so
the model is kept once; each has its own gradient and residual, and they meet in the package's own
methods of reduction, over a communicator that has all of them in one list.
"""

from typing import TYPE_CHECKING

from tf_scalecom.base.lazy_names import lazy_names
from tf_scalecom.simulate.config import METHODS, SimulationConfig

if TYPE_CHECKING:
    from tf_scalecom.simulate.runs import run, run_all
    from tf_scalecom.simulate.simulation import Simulation
    from tf_scalecom.simulate.task import Task, load_task
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Simulation": "tf_scalecom.simulate.simulation",
            "Task": "tf_scalecom.simulate.task",
            "load_task": "tf_scalecom.simulate.task",
            "run": "tf_scalecom.simulate.runs",
            "run_all": "tf_scalecom.simulate.runs",
        },
    )

__all__ = ["METHODS", "Simulation", "SimulationConfig", "Task", "load_task", "run", "run_all"]
