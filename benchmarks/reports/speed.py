"""Steps per second of the simulator, and of the learners' gradients computed at once or in turn.

    python benchmarks/reports/speed.py      -> a table

The convolutional network of models/image, CLT-k at 100x, 8 images per learner. Both ways take
turns, so that other load hits both; the best of some rounds counts.
"""

import functools
import time

import tensorflow as tf
from report_runs import TASK

from tf_scalecom.simulate import Simulation, SimulationConfig, load_task
from tf_scalecom.simulate.gradients import LearnerGradients

ROUNDS = {4: 20, 8: 20, 64: 5, 256: 3}


def main():
    """Measures and prints."""
    tf.get_logger().setLevel("ERROR")
    tf.config.experimental.enable_op_determinism()
    task = load_task(TASK)
    print("| learners | gradients in turn, ms | at once, ms | whole step, ms | steps/s |")
    print("|---|---|---|---|---|")
    for learners, rounds in ROUNDS.items():
        config = SimulationConfig(learners=learners, batch_size=8, steps=rounds + 1)
        simulation = Simulation(task, config)
        batches = [task.batch(range(8 * i, 8 * i + 8)) for i in range(learners)]
        contenders = [
            functools.partial(
                LearnerGradients(task, simulation.model, learners, vectorized=way), batches
            )
            for way in (False, True)
        ]
        contenders.append(simulation.advance)
        for contender in contenders:
            contender()  # traces
        times = [[seconds(contender) for contender in contenders] for _ in range(rounds)]
        in_turn, at_once, step = (1000 * min(column) for column in zip(*times, strict=True))
        print(
            f"| {learners} | {in_turn:.0f} | {at_once:.0f} | {step:.0f} | {1000 / step:.2f} |",
            flush=True,
        )


def seconds(function) -> float:
    """Time of a call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
