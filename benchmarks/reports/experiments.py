"""The runs behind docs/recipe.md and the convergence report: which arms, on what, with which seeds.

The first arm of an experiment is its dense baseline. Runs of one experiment with the same seed have
the same initial weights and data.
"""

import dataclasses
import pathlib
from typing import NamedTuple

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
            raise ValueError(
                f"Expected a task of {sorted(TASKS)}; received {self.task!r}. "
                "Add it to report_runs.TASKS."
            )

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
RATIOS = {"25x": 25, "400x": 400, "auto": "auto"}  # beside 100x, the default
RECIPE = {"learning_rate": 0.5}  # no momentum, no warm-up, beta 1, one of each chunk
MOMENTUM = {"learning_rate": 0.1, "momentum": 0.9}
DENSE = MOMENTUM | {"method": "dense"}
POWER_SGD = {"method": "power_sgd", "learning_rate": 0.2}


def ramp(steps: int) -> dict:
    """Options of a warm-up by a growing ratio."""
    return {"warmup_steps": steps, "warmup": "ramp"}


def dense_warmup(steps: int) -> dict:
    """Options of a warm-up as in the paper; to a dense run they make no difference."""
    return {"warmup_steps": steps, "warmup": "dense"}


IMAGE_4 = Experiment(
    "image-4",
    "Fashion-MNIST, 409,034 weights, 4 learners of 32 images, 3,000 steps",
    "small_image",
    "accuracy",
    {"learners": 4, "batch_size": 32, "steps": 3_000, "record_every": 100},
    (
        Arm("dense", DENSE | dense_warmup(150), THREE),
        Arm("dense, rate 0.05", DENSE | dense_warmup(150) | {"learning_rate": 0.05}),
        Arm("dense, rate 0.2", DENSE | dense_warmup(150) | {"learning_rate": 0.2}),
        Arm("dense without momentum", RECIPE | dense_warmup(150) | {"method": "dense"}, THREE),
        Arm("recipe, 100x", RECIPE, THREE),
        Arm("recipe with a ramp, 100x", RECIPE | ramp(600), THREE),
        Arm("recipe with dense warm-up, 100x", RECIPE | dense_warmup(150), THREE),
        Arm("the same with beta 0.3, 100x", RECIPE | dense_warmup(150) | {"beta": 0.3}, THREE),
        Arm("the same with momentum 0.9, 100x", MOMENTUM | dense_warmup(150)),
        *(
            Arm(f"recipe, {name}", RECIPE | {"compression_ratio": ratio}, THREE)
            for name, ratio in RATIOS.items()
        ),
        *(
            Arm(f"PowerSGD rank {rank}", POWER_SGD | dense_warmup(150) | {"rank": rank}, seeds)
            for rank, seeds in {1: THREE, 2: THREE, 4: (0,)}.items()
        ),
        Arm("PowerSGD rank 2 without warm-up", POWER_SGD | {"rank": 2}),
        Arm(
            "PowerSGD rank 2, momentum 0.9, rate 0.02",
            POWER_SGD | dense_warmup(150) | MOMENTUM | {"rank": 2, "learning_rate": 0.02},
        ),
    ),
)

IMAGE_64 = Experiment(
    "image-64",
    "Fashion-MNIST, 409,034 weights without pooling, 64 learners of 8 images, 3,000 steps",
    "fast_image",
    "accuracy",
    {
        "learners": 64,
        "batch_size": 8,
        "steps": 3_000,
        "record_every": 300,
        "evaluate_every": 500,
    },
    (
        Arm("dense", DENSE | dense_warmup(150), THREE),
        Arm("recipe, 100x", RECIPE, THREE),
        Arm("recipe with a ramp, 100x", RECIPE | ramp(600)),
        Arm("recipe with dense warm-up, 100x", RECIPE | dense_warmup(150)),
        Arm("the same with beta 0.3, 100x", RECIPE | dense_warmup(150) | {"beta": 0.3}, THREE),
        *(
            Arm(f"recipe, {name}", RECIPE | {"compression_ratio": ratio})
            for name, ratio in RATIOS.items()
        ),
    ),
)

SCREENED = RECIPE | dense_warmup(50)

SCREENING = Experiment(
    "screening",
    "As image-4, 1,000 steps",
    "small_image",
    "accuracy",
    {"learners": 4, "batch_size": 32, "steps": 1_000, "record_every": 100},
    (
        Arm("dense, momentum 0.9", DENSE | dense_warmup(50)),
        Arm("dense", SCREENED | {"method": "dense"}),
        *(
            Arm(f"{name}, beta {beta}", SCREENED | {"beta": beta} | selection)
            for name, selection in {
                "1 of 100": {},
                "10 of 1,000": {"chunk_keep": 10},
                "exact": {"selection": "exact"},
            }.items()
            for beta in (1.0, 0.3, 0.1)
        ),
        Arm("1 of 100, beta from 1 to 0.3", SCREENED | {"final_beta": 0.3}),
        Arm("1 of 100, beta from 0.3 to 1", SCREENED | {"beta": 0.3, "final_beta": 1.0}),
        Arm("1 of 100, beta 1, dense warm-up of 10 steps", RECIPE | dense_warmup(10)),
        Arm("1 of 100, beta 1, ramp of 50 steps", RECIPE | ramp(50)),
        Arm("1 of 100, beta 1, ramp of 200 steps", RECIPE | ramp(200)),
        Arm("1 of 100, beta 1, no warm-up", RECIPE),
        Arm("1 of 100, beta 0.3, rate 1", SCREENED | {"learning_rate": 1.0, "beta": 0.3}),
        Arm("1 of 100, beta 1, momentum 0.9", MOMENTUM | dense_warmup(50)),
        Arm(
            "1 of 100, beta 0.3, momentum 0.9 before",
            MOMENTUM | dense_warmup(50) | {"beta": 0.3, "momentum_placement": "before"},
        ),
        *(
            Arm(f"1 of {ratio}, beta 0.3", SCREENED | {"beta": 0.3, "compression_ratio": ratio})
            for ratio in RATIOS.values()
        ),
        Arm("PowerSGD rank 1", SCREENED | {"method": "power_sgd"}),
        Arm("PowerSGD rank 2, rate 0.2", POWER_SGD | dense_warmup(50) | {"rank": 2}),
        Arm("PowerSGD rank 1, momentum 0.9", MOMENTUM | dense_warmup(50) | {"method": "power_sgd"}),
    ),
)

SEQUENCE = {"learners": 4, "batch_size": 8, "record_every": 100, "evaluate_every": 200}

# Without Adam's mean of gradients.
ADAM_RECIPE = {"adam_beta_1": 0.0, "learning_rate": 4e-3} | ramp(160)
ADAM_DENSE_WARMUP = ADAM_RECIPE | dense_warmup(40)
ADAM_MEAN = {"adam_beta_1": 0.9}
DENSE_ADAM = ADAM_DENSE_WARMUP | ADAM_MEAN | {"method": "dense", "adam_beta_2": 0.98}
POWER_SGD_ADAM = ADAM_DENSE_WARMUP | {"method": "power_sgd", "learning_rate": 2e-3}

TRANSLATION = Experiment(
    "translation",
    "Debian descriptions, Transformer of 906,240 weights, 4 learners of 8 sentences, 800 steps, "
    "Adam",
    "translation",
    "token_accuracy",
    SEQUENCE | {"steps": 800, "optimizer": "adam", "lr_warmup": 0.2},
    (
        Arm("dense", DENSE_ADAM, THREE),
        Arm("dense, rate 0.002", DENSE_ADAM | {"learning_rate": 2e-3}, THREE),
        Arm("dense, rate 0.008", DENSE_ADAM | {"learning_rate": 8e-3}),
        Arm("dense, beta_2 0.999", DENSE_ADAM | {"adam_beta_2": 0.999}),
        Arm("dense with the recipe's Adam", ADAM_DENSE_WARMUP | {"method": "dense"}),
        Arm("recipe, 100x", ADAM_RECIPE, THREE),
        Arm("recipe, rate 0.005, 100x", ADAM_RECIPE | {"learning_rate": 5e-3}),
        Arm("recipe, beta_2 0.9999, 100x", ADAM_RECIPE | {"adam_beta_2": 0.9999}),
        Arm("recipe, beta_1 0.5, 100x", ADAM_RECIPE | {"adam_beta_1": 0.5}),
        Arm(
            "recipe, oracle of exact selection, 100x",
            ADAM_RECIPE | {"method": "mean_top_k", "selection": "exact"},
        ),
        Arm("recipe with a ramp of 400 steps, 100x", ADAM_RECIPE | ramp(400)),
        Arm("recipe without warm-up, 100x", ADAM_RECIPE | dense_warmup(0)),
        Arm("recipe with dense warm-up of 80, 100x", ADAM_RECIPE | dense_warmup(80)),
        Arm("recipe with dense warm-up, 100x", ADAM_DENSE_WARMUP, THREE),
        *(
            Arm(f"the same, rate {rate}, 100x", ADAM_DENSE_WARMUP | {"learning_rate": rate})
            for rate in (3e-3, 6e-3, 8e-3)
        ),
        Arm("the same, exact selection, 100x", ADAM_DENSE_WARMUP | {"selection": "exact"}),
        Arm("the same, beta_2 0.98, 100x", ADAM_DENSE_WARMUP | {"adam_beta_2": 0.98}),
        Arm("the same, beta 0.3, 100x", ADAM_DENSE_WARMUP | {"beta": 0.3}, THREE),
        Arm(
            "the same, momentum 0.9 before, 100x",
            ADAM_DENSE_WARMUP | {"momentum": 0.9, "momentum_placement": "before"},
        ),
        *(
            Arm(f"recipe, {name}", ADAM_RECIPE | {"compression_ratio": ratio})
            for name, ratio in RATIOS.items()
        ),
        Arm("recipe with Adam's mean, 25x", ADAM_RECIPE | ADAM_MEAN | {"compression_ratio": 25}),
        Arm(
            "dense warm-up, Adam's mean, 4x",
            ADAM_DENSE_WARMUP | ADAM_MEAN | {"compression_ratio": 4},
        ),
        Arm(
            "dense warm-up, Adam's mean, beta_2 0.98, 4x",
            ADAM_DENSE_WARMUP | ADAM_MEAN | {"compression_ratio": 4, "adam_beta_2": 0.98},
        ),
        Arm(
            "dense warm-up, Adam's mean, beta_2 0.98, rate 0.002, 100x",
            ADAM_DENSE_WARMUP | ADAM_MEAN | {"adam_beta_2": 0.98, "learning_rate": 2e-3},
        ),
        Arm("PowerSGD rank 1, rate 0.002", POWER_SGD_ADAM, THREE),
        Arm("PowerSGD rank 1, rate 0.004", POWER_SGD_ADAM | {"learning_rate": 4e-3}),
        Arm("PowerSGD rank 1, Adam's mean, rate 0.002", POWER_SGD_ADAM | ADAM_MEAN),
    ),
)

LONG_TRANSLATION = Experiment(
    "translation-long",
    "As translation, 2,400 steps",
    "translation",
    "token_accuracy",
    SEQUENCE | {"steps": 2_400, "optimizer": "adam", "lr_warmup": 0.2, "evaluate_every": 400},
    (
        Arm("dense", DENSE_ADAM | dense_warmup(120)),
        Arm("recipe, 100x", ADAM_RECIPE | ramp(480)),
        Arm("recipe with dense warm-up, 100x", ADAM_RECIPE | dense_warmup(120)),
    ),
)

SPEECH = Experiment(
    "speech",
    "Asterisk prompts, bidirectional LSTM of 358,919 weights, 4 learners of 8 windows, 1,200 steps",
    "speech",
    "frame_accuracy",
    SEQUENCE | {"steps": 1_200},
    (
        Arm("dense", DENSE | dense_warmup(60), THREE),
        Arm("recipe, 100x", RECIPE, THREE),
        Arm("recipe with a ramp, 100x", RECIPE | ramp(240)),
        Arm("recipe with dense warm-up, 100x", RECIPE | dense_warmup(60), (0, 1)),
        *(
            Arm(f"recipe, {name}", RECIPE | {"compression_ratio": ratio})
            for name, ratio in RATIOS.items()
        ),
        Arm("PowerSGD rank 1", POWER_SGD | dense_warmup(60)),
    ),
)


def who_chooses(recipe: dict, learners: int, batch_size: int) -> tuple[Arm, ...]:
    """The recipe with other choices of what is sent; the global batch is always the same."""
    batches = {n: learners * batch_size // n for n in (1, 2, 4)}
    return (
        *(
            Arm(f"recipe, {n} x {batch}", recipe | {"learners": n, "batch_size": batch}, THREE)
            for n, batch in batches.items()
        ),
        Arm("recipe, every learner leads a share", recipe | {"method": "shares_top_k"}, THREE),
        Arm("recipe, residuals mixed by signs", recipe | {"method": "mixed_top_k"}, THREE),
        Arm(
            "recipe, residuals mixed by signs of the large",
            recipe | {"method": "mixed_top_k", "picture": "large_signs"},
        ),
        Arm("recipe, 50x", recipe | {"compression_ratio": 50}),
        Arm("recipe, oracle", recipe | {"method": "mean_top_k"}, THREE),
        Arm(
            "recipe, oracle of exact selection",
            recipe | {"method": "mean_top_k", "selection": "exact"},
        ),
    )


def late(dense: dict, mean: str) -> tuple[Arm, ...]:
    """Dense training whose gradients come late, at two rates, and the lower one on time.

    `mean` says what momentum it has.
    """
    rate = dense["learning_rate"]
    delayed = {"delay": 4}
    return (
        Arm(f"dense, {mean}, rate {rate:g}, 4 steps late", dense | delayed),
        Arm(f"dense, {mean}, rate {rate / 4:g}", dense | {"learning_rate": rate / 4}),
        Arm(
            f"dense, {mean}, rate {rate / 4:g}, 4 steps late",
            dense | {"learning_rate": rate / 4} | delayed,
        ),
    )


def cause(
    of: Experiment, recipe: dict, dense: dict, without: dict, means: tuple[str, str]
) -> Experiment:
    """What causes the deficits of an experiment: who chooses, or that momentum comes late.

    `without` is dense training without momentum; `means` are the words for it with and without.
    """
    momentum, none = means
    return dataclasses.replace(
        of,
        name=f"cause-{of.name.partition('-')[0]}",
        title=f"As {of.name}: who chooses, and gradients that come late",
        arms=(
            Arm("dense", dense, THREE),
            *who_chooses(recipe, of.options["learners"], of.options["batch_size"]),
            *late(dense, momentum),
            Arm(f"dense, {none}", without),
            *late(without, none),
        ),
    )


HALF = {"compression_ratio": 50, "value_dtype": "bfloat16"}
THIRD = {"compression_ratio": 34, "value_dtype": "int8"}
OWNERS = {"method": "owners_top_k", "value_dtype": "bfloat16"}
NARROW_OWNERS = {"compression_ratio": 70, "value_dtype": "int8"}


def local_steps(of: dict, count: int, progress: str, seeds: tuple[int, ...] = (0,)) -> Arm:
    """Steps of the user's own optimizer, and 100x over all of them."""
    options = {"local_steps": count, "compression_ratio": 100 / count, "local_progress": progress}
    options["record_every"] = 80  # in whole rounds
    return Arm(f"{count} local steps, unsent {progress}", of | options, seeds)


def ways(of: Experiment, dense: dict, recipe: dict, more: tuple[Arm, ...] = ()) -> Experiment:
    """The recipe beside other methods of about its bytes, and `more` of them."""
    owners = recipe | OWNERS
    return dataclasses.replace(
        of,
        name=f"ways-{of.name}",
        title=f"As {of.name}: methods of about equal bytes",
        arms=(
            Arm("dense", dense, THREE),
            Arm("recipe, 100x", recipe, THREE),
            Arm("recipe, 50x, bfloat16 wire", recipe | HALF),
            Arm("recipe, 100x, int8 wire", recipe | {"value_dtype": "int8"}, THREE),
            Arm("recipe, 34x, int8 wire", recipe | THIRD, THREE),
            Arm("a share each", recipe | {"method": "shares_top_k"}, THREE),
            Arm("a share each, 34x, int8 wire", recipe | THIRD | {"method": "shares_top_k"}, THREE),
            Arm("owners, 100x", owners, THREE),
            Arm("owners, 92x", owners | {"compression_ratio": 92}, THREE),
            Arm("owners, 70x, int8 wire", owners | NARROW_OWNERS, THREE),
            *more,
        ),
    )


# Plain SGD takes the steps of the methods that make Adam's.
FACTORED = {"method": "factored_moment_top_k"}
ADAM_STEP = {"optimizer": "sgd", "learning_rate": 4e-3} | ramp(160)
LOCAL_ADAM = {"adam_beta_2": 0.98, "learning_rate": 4e-3}

WAYS = (
    ways(
        TRANSLATION,
        DENSE_ADAM,
        ADAM_RECIPE,
        (
            Arm(
                "sketch of blocks of 64, 200x",
                ADAM_RECIPE
                | {"method": "sketch_top_k", "chunk_keep": 64, "compression_ratio": 200},
            ),
            *(
                Arm(f"factored second moment, {name}", ADAM_STEP | FACTORED | {"step_limit": limit})
                for name, limit in {"no limit": None, "limit 10": 10}.items()
            ),
            Arm(
                "second moment sent, 180x, limit 10",
                ADAM_STEP
                | {"method": "sent_moment_top_k", "compression_ratio": 180, "step_limit": 10},
            ),
            *(
                local_steps(LOCAL_ADAM, count, progress)
                for count in (2, 4, 8)
                for progress in ("dropped", "kept")
            ),
        ),
    ),
    ways(SPEECH, DENSE | dense_warmup(60), RECIPE),
    ways(IMAGE_4, DENSE | dense_warmup(150), RECIPE),
    ways(IMAGE_64, DENSE | dense_warmup(150), RECIPE),
)

CAUSES = (
    cause(
        TRANSLATION,
        ADAM_RECIPE,
        DENSE_ADAM,
        DENSE_ADAM | {"adam_beta_1": 0.0, "adam_beta_2": 0.999},
        ("beta_1 0.9", "beta_1 0"),
    ),
    *(
        cause(
            of,
            RECIPE,
            DENSE | dense_warmup(steps),
            RECIPE | dense_warmup(steps) | {"method": "dense"},
            ("momentum 0.9", "no momentum"),
        )
        for of, steps in ((SPEECH, 60), (IMAGE_4, 150))
    ),
)

# The rates are the best that dense training had in 1,000 steps, of 0.03, 0.1, 0.3, 0.5 and 1 and of
# 2e-3, 5e-3, 1e-2, 2e-2 and 4e-2 (`python -m tf_scalecom simulate --method dense`); the
# recipe's for SGD is five times that, as in the other experiments.
_LENGTH_SGD = {"learning_rate": 0.3, "momentum": 0.9}
_LENGTH_SLOW_SGD = _LENGTH_SGD | {"learning_rate": 0.1}
_LENGTH_ADAM = {"optimizer": "adam", "learning_rate": 1e-2}


class LengthArm(NamedTuple):
    """An optimizer in the comparison of lengths.

    Attributes:
        dense: name of the dense arm that it is compared with.
        of_dense: its options.
        compressed: options at 100x.
    """

    dense: str
    of_dense: dict
    compressed: dict


LENGTH_ARMS = {
    "SGD, momentum 0.9": LengthArm("dense SGD", _LENGTH_SGD, _LENGTH_SGD),
    "SGD, momentum 0.9, a third of the rate": LengthArm(
        "dense SGD, a third of the rate", _LENGTH_SLOW_SGD, _LENGTH_SLOW_SGD
    ),
    "SGD, the recipe": LengthArm("dense SGD", _LENGTH_SGD, {"learning_rate": 1.5}),
    "Adam(0.9)": LengthArm("dense Adam", _LENGTH_ADAM, _LENGTH_ADAM),
    "Adam, the recipe": LengthArm("dense Adam", _LENGTH_ADAM, _LENGTH_ADAM | {"adam_beta_1": 0.0}),
}


def of_length(steps: int) -> Experiment:
    """All optimizers, dense and compressed, over some number of steps."""
    seeds = THREE if steps <= 4_000 else (0,)
    arms = {}
    for name, arm in LENGTH_ARMS.items():
        arms[arm.dense] = Arm(arm.dense, arm.of_dense | {"method": "dense"}, seeds)
        arms[name] = Arm(name, arm.compressed | ramp(steps // 5), seeds)
    return Experiment(
        f"length-{steps}",
        f"The next character, 46,816 weights, 4 learners of 32 examples, {steps:,} steps",
        "next_character",
        "character_accuracy",
        {
            "learners": 4,
            "batch_size": 32,
            "steps": steps,
            "record_every": steps // 10,
            "evaluate_every": steps,
        },
        tuple(arms.values()),
    )


LENGTHS = tuple(of_length(steps) for steps in (500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000))


def of_local_steps(batch_size: int) -> Experiment:
    """Local steps beside the recipe, with some number of examples a learner."""
    adam, recipe = _LENGTH_ADAM, _LENGTH_ADAM | {"adam_beta_1": 0.0}
    steps = 1_920  # whole rounds of each kind
    return Experiment(
        f"local-{batch_size}",
        f"The next character, 46,816 weights, 4 learners of {batch_size} examples, {steps:,} steps",
        "next_character",
        "character_accuracy",
        {"learners": 4, "batch_size": batch_size, "steps": steps, "evaluate_every": steps},
        (
            Arm("dense", adam | {"method": "dense"}, THREE),
            Arm("recipe, 100x", recipe | ramp(steps // 5), THREE),
            Arm("Adam's mean, 100x", adam | ramp(steps // 5), THREE),
            *(
                local_steps(adam, count, progress, THREE)
                for count in (2, 4, 8)
                for progress in ("dropped", "kept")
            ),
        ),
    )


LOCAL = tuple(of_local_steps(batch_size) for batch_size in (8, 32, 128))

# The arms of which a curve is drawn, with its colour in all pictures. "auto" may be 400x.
CURVES = {
    "dense": "black",
    "recipe, 25x": "tab:cyan",
    "recipe, 100x": "tab:blue",
    "recipe, 400x": "tab:purple",
    "recipe, auto": "tab:pink",
}
# Method -> the arms that are its points in the picture of accuracy against bytes.
METHODS = {
    "dense": ("dense",),
    "recipe": ("recipe, 25x", "recipe, 100x", "recipe, 400x", "recipe, auto"),
    "recipe with a ramp": ("recipe with a ramp, 100x",),
    "recipe with dense warm-up": ("recipe with dense warm-up, 100x",),
    "PowerSGD with dense warm-up": (
        "PowerSGD rank 1",
        "PowerSGD rank 1, rate 0.002",
        "PowerSGD rank 2",
        "PowerSGD rank 4",
    ),
}
EXPERIMENTS = (
    SCREENING,
    IMAGE_4,
    IMAGE_64,
    TRANSLATION,
    LONG_TRANSLATION,
    SPEECH,
    *CAUSES,
    *WAYS,
    *LENGTHS,
    *LOCAL,
)
CONVERGENCE = (IMAGE_4, IMAGE_64, TRANSLATION, SPEECH)
