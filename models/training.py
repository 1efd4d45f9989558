"""What every train.py does alike: workers, optimizer, and what it reports at the end."""

import dataclasses
import json
import logging
import pathlib
from collections.abc import Sequence

import keras
import schedules
import tensorflow as tf
from absl import flags
from step_meter import StepMeter

import tf_scalecom as sc
from tf_scalecom.workers.cluster import find_cluster

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Workers:
    """The processes that train together.

    Attributes:
        strategy: joins them.
        addresses: host:port of each, the chief's first; one of no meaning, if there is one alone.
        index: of this process among them.
    """

    strategy: sc.MultiWorkerMirroredStrategy
    addresses: list[str]
    index: int

    @property
    def count(self) -> int:
        return len(self.addresses)

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    @property
    def share_loopback(self) -> bool:
        """Whether all they send each other passes this machine's loopback interface."""
        return self.count > 1 and all(
            host.startswith("127.") or host == "localhost" for host in _hosts(self.addresses)
        )

    @property
    def global_batch(self) -> int:
        return FLAGS.batch_per_worker * self.count

    def say(self, line: str) -> None:
        """Prints on the chief alone."""
        if self.is_chief:
            print(line, flush=True)


def start() -> Workers:
    """Joins the workers that TF_CONFIG names; alone without it.

    Raises:
        ValueError: TF_CONFIG is incomplete or contradicts itself.
    """
    addresses, index = place_in_cluster()
    tf.get_logger().setLevel(logging.WARNING)  # it tells of every collective it traces
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.intra_op_threads)
    keras.utils.set_random_seed(FLAGS.seed)
    gpus = tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices(share_of_gpus(gpus, addresses, index), "GPU")
    return Workers(sc.MultiWorkerMirroredStrategy(), addresses, index)


def place_in_cluster() -> tuple[list[str], int]:
    """`Workers.addresses` and `Workers.index`, as TF_CONFIG has them.

    Raises:
        ValueError: TF_CONFIG is incomplete or contradicts itself.
    """
    cluster = find_cluster()
    if cluster is None:
        return ["alone:0"], 0
    return list(cluster.workers.values()), list(cluster.workers).index(cluster.name)


def share_of_gpus(gpus: Sequence, addresses: Sequence[str], index: int) -> Sequence:
    """The machine's GPUs that a worker takes: workers on one machine take none in common."""
    hosts = _hosts(addresses)
    here = hosts[index]
    return gpus[hosts[:index].count(here) :: hosts.count(here)]


def _hosts(addresses):
    return [address.rsplit(":", 1)[0] for address in addresses]


def scaled(rate: float, workers: Workers, exponent: float) -> float:
    """The learning rate at the real global batch: rate * (global / base batch) ** exponent.

    1 for SGD (Goyal et al., 2017), whose mean gradient keeps its size while its steps get fewer;
    1/2 for Adam, which divides by the gradient's standard deviation.
    """
    if FLAGS.base_batch is None:
        return rate
    return rate * (workers.global_batch / FLAGS.base_batch) ** exponent


def sgd(workers: Workers) -> keras.optimizers.Optimizer:
    """SGD by the flags of `shared_flags.define_sgd_flags`, compressed if a ratio is given."""
    steps = FLAGS.epochs * FLAGS.steps_per_epoch
    ramp_steps = round(FLAGS.ramp * steps)
    peak = scaled(FLAGS.learning_rate, workers, exponent=1.0)
    if FLAGS.decay_epochs:
        drops = [int(epoch) * FLAGS.steps_per_epoch for epoch in FLAGS.decay_epochs]
        schedule = schedules.RampThenDrops(peak, ramp_steps, drops, FLAGS.decay_factor)
    else:
        schedule = schedules.ramp_then_cosine(peak, steps, ramp_steps)
    optimizer = keras.optimizers.SGD(
        schedule, momentum=FLAGS.momentum, weight_decay=FLAGS.weight_decay or None
    )
    if FLAGS.weight_decay:
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return compressed(optimizer)


def compressed(inner: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer, wrapped when a compression ratio is given."""
    if FLAGS.compression_ratio is None:
        return inner
    method = getattr(sc.methods, FLAGS.method)(
        compression_ratio=FLAGS.compression_ratio,
        beta=FLAGS.beta,
        chunk_keep=FLAGS.chunk_keep,
        value_dtype=FLAGS.value_dtype,
    )
    return sc.CompressedOptimizer(
        inner, method, warmup_steps=FLAGS.warmup_steps, warmup=FLAGS.warmup
    )


def sgd_recipe() -> str:
    """The training settings in words."""
    if FLAGS.decay_epochs:
        then = f"x {FLAGS.decay_factor:g} after epochs {', '.join(FLAGS.decay_epochs)}"
    else:
        then = "cosine"
    return (
        f"SGD, peak learning rate {FLAGS.learning_rate}, momentum {FLAGS.momentum}, "
        f"{FLAGS.ramp:.0%} linear ramp then {then}, {FLAGS.batch_per_worker} examples per worker, "
        f"seed {FLAGS.seed}"
    )


def compression_recipe() -> str:
    """The compression settings in words."""
    ratio, steps = FLAGS.compression_ratio, FLAGS.warmup_steps
    warmup = f"{steps} steps of warm-up ({FLAGS.warmup})" if steps else "no warm-up"
    return (
        f"{ratio if ratio == 'auto' else f'{ratio:g}x'}, beta {FLAGS.beta}, chunk_keep "
        f"{FLAGS.chunk_keep}, {FLAGS.value_dtype}, {FLAGS.method}, {warmup}"
    )


def fit(workers: Workers, model: keras.Model, batches, test) -> tuple[dict, StepMeter]:
    """Trains by the flags.

    Args:
        workers: the processes that train.
        model: compiled.
        batches, test: datasets to train on and to evaluate after each epoch.

    Returns:
        The history of the metrics, and the meter of the steps.
    """
    meter = StepMeter(workers.count, ignored_steps=FLAGS.warmup_steps + 10)
    history = model.fit(
        batches,
        epochs=FLAGS.epochs,
        steps_per_epoch=FLAGS.steps_per_epoch,
        shuffle=False,  # the data set shuffles itself; Keras would warn that it cannot
        validation_data=test,
        verbose=int(workers.is_chief),  # one progress bar is enough
        callbacks=[meter],
    )
    return history.history, meter


def finish(workers: Workers, model: keras.Model, meter: StepMeter, **measured) -> None:
    """On the chief, prints what was measured and writes it to --result.

    Args:
        workers: the processes that trained.
        model: trained.
        meter: what `fit` returned.
        **measured: what the task has to say, figures of merit first.
    """
    if not workers.is_chief:
        return
    measured |= {
        "parameters": model.count_params(),
        "workers": workers.count,
        "steps": FLAGS.epochs * FLAGS.steps_per_epoch,
        "seconds_per_step": meter.seconds_per_step,
        "ignored_steps": meter.ignored_steps,
        "loopback_bytes": meter.bytes_per_step_and_worker if workers.share_loopback else None,
    }
    if FLAGS.compression_ratio is not None:
        report = model.optimizer.compression_report()
        measured |= {
            "compression": compression_recipe(),
            "bytes_dense": report.bytes_dense,
            "bytes_sent": report.bytes_sent,
            "ratio": report.ratio,
        }
    for name, value in measured.items():
        if isinstance(value, float):
            value = f"{value:.4g}" if value < 1_000 else f"{value:,.0f}"
        print(f"{name}: {value}", flush=True)
    if FLAGS.result:
        pathlib.Path(FLAGS.result).write_text(json.dumps(measured))
