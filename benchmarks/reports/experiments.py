"""The runs behind docs/recipe.md and the convergence report: which arms, on what, with which seeds.

The first arm of an experiment is its dense baseline. Runs of one experiment with the same seed have
the same initial weights and data.
"""

import dataclasses
import pathlib

from report_runs import TASKS, done, simulated

from tf_scalecom.simulate import SimulationConfig


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
      name: in tables and pictures.
      options: of `SimulationConfig`, beside the experiment's.
      seeds: of its runs.
    """

    name: str
    options: dict
    seeds: tuple[int, ...] = (0,)


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """Arms that are compared with each other.

    Attributes:
      name: short.
      title: what is trained, for people.
      task: name of it among `report_runs.TASKS`.
      figure: the column of evaluations.csv that counts; more is better.
      options: of `SimulationConfig`, for all arms.
      arms: the dense one first.
    """

    name: str
    title: str
    task: str
    figure: str
    options: dict
    arms: tuple[Arm, ...]

    def __post_init__(self):
        if self.task not in TASKS:
            raise ValueError(f"Expected a task of {sorted(TASKS)}; received {self.task!r}. "
                             "Add it to report_runs.TASKS.")

    def configs(self) -> dict[tuple[str, int], SimulationConfig]:
        """(arm, seed) -> run."""
        return {
            (arm.name, seed): SimulationConfig(**self.options | arm.options, seed=seed)
            for arm in self.arms
            for seed in arm.seeds
        }

    def folders(self, only_done: bool) -> dict[tuple[str, int], pathlib.Path]:
        """(arm, seed) -> folder of the finished run.

        Args:
          only_done: leaves out the runs that are not done yet, instead of making them.
        """
        configs = self.configs()
        make = done if only_done else simulated
        folders = make(list(configs.values()), self.task)
        return {key: folders[config] for key, config in configs.items() if config in folders}


THREE = (0, 1, 2)
RECIPE = {"learning_rate": 0.5}  # no momentum, beta 1, one of each chunk
PAPER = {"learning_rate": 0.1, "momentum": 0.9}

IMAGE_4 = Experiment(
    "image-4",
    "Fashion-MNIST, 409,034 weights, 4 learners of 32 images, 3,000 steps",
    "small_image",
    "accuracy",
    {"learners": 4, "batch_size": 32, "steps": 3_000, "warmup_steps": 150, "record_every": 100},
    (
        Arm("dense", {"method": "dense", "learning_rate": 0.1, "momentum": 0.9}, THREE),
        Arm("dense without momentum", {"method": "dense", "learning_rate": 0.5}, THREE),
        Arm("recipe, 100x", RECIPE, THREE),
        Arm("recipe with beta 0.3, 100x", RECIPE | {"beta": 0.3}, THREE),
        *(
            Arm(f"recipe, {name}", RECIPE | {"compression_ratio": ratio})
            for name, ratio in {"25x": 25, "400x": 400, "auto": "auto"}.items()
        ),
        Arm("momentum 0.9, beta 1, 100x", PAPER),
        *(
            Arm(f"PowerSGD rank {rank}",
                {"method": "power_sgd", "learning_rate": 0.2, "rank": rank})
            for rank in (1, 2, 4)
        ),
    ),
)

IMAGE_64 = Experiment(
    "image-64",
    "Fashion-MNIST, 409,034 weights without pooling, 64 learners of 8 images, 3,000 steps",
    "fast_image",
    "accuracy",
    {
        "learners": 64, "batch_size": 8, "steps": 3_000, "warmup_steps": 150,
        "record_every": 300, "evaluate_every": 500,
    },
    (
        Arm("dense", {"method": "dense", "learning_rate": 0.1, "momentum": 0.9}, THREE),
        Arm("recipe with beta 0.3, 100x", RECIPE | {"beta": 0.3}, THREE),
    ),
)

SCREENING = Experiment(
    "screening",
    "As image-4, 1,000 steps",
    "small_image",
    "accuracy",
    {"learners": 4, "batch_size": 32, "steps": 1_000, "warmup_steps": 50, "record_every": 100},
    (
        Arm("dense, momentum 0.9", {"method": "dense", "learning_rate": 0.1, "momentum": 0.9}),
        Arm("dense", {"method": "dense", "learning_rate": 0.5}),
        *(
            Arm(f"{name}, beta {beta}", {"learning_rate": 0.5, "beta": beta} | selection)
            for name, selection in {
                "1 of 100": {}, "10 of 1,000": {"chunk_keep": 10}, "exact": {"selection": "exact"},
            }.items()
            for beta in (1.0, 0.3, 0.1)
        ),
        Arm("1 of 100, beta 0.3, rate 1", {"learning_rate": 1.0, "beta": 0.3}),
        Arm("1 of 100, beta 1, momentum 0.9", PAPER),
        Arm("1 of 100, beta 0.3, momentum 0.9 before",
            PAPER | {"beta": 0.3, "momentum_placement": "before"}),
        *(
            Arm(f"1 of {ratio}, beta 0.3", RECIPE | {"beta": 0.3, "compression_ratio": ratio})
            for ratio in (25, 400, "auto")
        ),
        Arm("PowerSGD rank 1", {"method": "power_sgd", "learning_rate": 0.5}),
        Arm("PowerSGD rank 2, rate 0.2", {"method": "power_sgd", "learning_rate": 0.2, "rank": 2}),
        Arm("PowerSGD rank 1, momentum 0.9", PAPER | {"method": "power_sgd"}),
    ),
)

SEQUENCE = {
    "learners": 4, "batch_size": 8, "steps": 800, "warmup_steps": 40, "record_every": 100,
    "evaluate_every": 200,
}

# Without Adam's mean of gradients.
ADAM_RECIPE = {"adam_beta_1": 0.0, "learning_rate": 4e-3}
DENSE_ADAM = {"method": "dense", "adam_beta_2": 0.98, "learning_rate": 4e-3}

TRANSLATION = Experiment(
    "translation",
    "Debian descriptions, Transformer of 906,240 weights, 4 learners of 8 sentences, 800 steps, "
    "Adam",
    "translation",
    "token_accuracy",
    SEQUENCE | {"optimizer": "adam", "lr_warmup": 0.2},
    (
        Arm("dense", DENSE_ADAM, THREE),
        Arm("dense, rate 0.002", DENSE_ADAM | {"learning_rate": 2e-3}, THREE),
        Arm("dense, rate 0.008", DENSE_ADAM | {"learning_rate": 8e-3}),
        Arm("dense with the recipe's Adam", ADAM_RECIPE | {"method": "dense"}),
        Arm("recipe, 100x", ADAM_RECIPE, THREE),
        Arm("recipe, rate 0.008, 100x", ADAM_RECIPE | {"learning_rate": 8e-3}),
        Arm("recipe with beta 0.3, 100x", ADAM_RECIPE | {"beta": 0.3}, THREE),
        Arm("recipe with beta 0.3, rate 0.002, 100x",
            ADAM_RECIPE | {"beta": 0.3, "learning_rate": 2e-3}),
        Arm("recipe with beta 0.3, rate 0.008, 100x",
            ADAM_RECIPE | {"beta": 0.3, "learning_rate": 8e-3}),
        Arm("beta_1 0.9, beta 0.3, rate 0.002, 100x", {"beta": 0.3, "learning_rate": 2e-3}),
        Arm("beta_1 0.9, beta_2 0.98, rate 0.002, 100x",
            {"adam_beta_2": 0.98, "learning_rate": 2e-3}),
        Arm("PowerSGD rank 1, rate 0.002", {"method": "power_sgd", "learning_rate": 2e-3}),
        Arm("PowerSGD rank 1, beta_1 0, rate 0.002",
            {"method": "power_sgd", "adam_beta_1": 0.0, "learning_rate": 2e-3}),
        Arm("PowerSGD rank 1, beta_1 0", ADAM_RECIPE | {"method": "power_sgd"}),
    ),
)

SPEECH = Experiment(
    "speech",
    "Asterisk prompts, bidirectional LSTM of 358,919 weights, 4 learners of 8 windows, 1,200 steps",
    "speech",
    "frame_accuracy",
    SEQUENCE | {"steps": 1_200, "warmup_steps": 60},
    (
        Arm("dense", {"method": "dense", "learning_rate": 0.1, "momentum": 0.9}, (0, 1)),
        Arm("recipe, 100x", RECIPE, (0, 1)),
        Arm("PowerSGD rank 1", {"method": "power_sgd", "learning_rate": 0.2}),
    ),
)

EXPERIMENTS = (SCREENING, IMAGE_4, IMAGE_64, TRANSLATION, SPEECH)
CONVERGENCE = (IMAGE_4, IMAGE_64, TRANSLATION, SPEECH)
