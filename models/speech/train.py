"""Trains a bidirectional LSTM on speech: alone, or on the workers that TF_CONFIG names.

Examples:
    python models/speech/train.py --epochs 1
    python -m tf_scalecom run -n 2 models/speech/train.py --compression_ratio 100
    python models/speech/train.py --dataset librispeech --data_dir /data/tfds --units 512 \
        --bottleneck 256
"""

import pathlib
import sys

import keras
from absl import app, flags

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))  # what all tasks share

import blstm
import log_mel
import shared_flags
import speech_data
import tfds_speech
import training

FLAGS = flags.FLAGS
shared_flags.define_flags(learning_rate=1.0, epochs=2, steps_per_epoch=200)
shared_flags.define_sgd_flags()
flags.DEFINE_enum(
    "dataset",
    "asterisk",
    ["asterisk", "speech_commands", "librispeech"],
    "Who speaks in telephone prompts; which command; which acoustic state. The latter two must lie "
    "under --data_dir, prepared by `tfds build`.",
)
flags.DEFINE_enum("labels", "frame", ["frame", "utterance"], "What has a label.")
flags.DEFINE_string(
    "alignments", None, "Labels of LibriSpeech's frames, as Kaldi writes them; see tfds_speech.py."
)
shared_flags.define_count("num_layers", 4, "Bidirectional LSTM layers.")
shared_flags.define_count("units", 64, "Of each direction of each layer.")
shared_flags.define_count("bottleneck", 64, "Width of the layer before the outputs.")


def load_data(workers: training.Workers):
    """Returns (name, frames, number of classes, training batches, test batches)."""
    per_frame = FLAGS.labels == "frame"
    if FLAGS.dataset == "asterisk":
        data = speech_data.load(pathlib.Path(FLAGS.data_dir), per_frame)
        return (
            data.name,
            speech_data.FRAMES,
            data.num_classes,
            speech_data.training_dataset(data, workers.global_batch, FLAGS.seed),
            speech_data.test_dataset(data, 128 * workers.count),
        )
    if FLAGS.dataset == "speech_commands":
        data = tfds_speech.speech_commands(FLAGS.data_dir, per_frame)
    elif per_frame:
        alignments = pathlib.Path(FLAGS.alignments) if FLAGS.alignments else None
        data = tfds_speech.librispeech(FLAGS.data_dir, alignments=alignments)
    else:
        raise app.UsageError(
            "Expected --labels frame with LibriSpeech, which has no classes of utterances; "
            "received --labels utterance. Take --dataset speech_commands for those."
        )
    return (
        data.name,
        data.frames,
        data.num_classes,
        data.training(workers.strategy, FLAGS.batch_per_worker, FLAGS.seed),
        data.test(workers.strategy, FLAGS.batch_per_worker),
    )


def main(argv):
    """Builds strategy, data and model from the flags, and fits."""
    if argv[1:]:
        raise app.UsageError(f"Expected flags only; received {argv[1:]}. See --help.")
    workers = training.start()
    name, frames, num_classes, batches, test = load_data(workers)
    with workers.strategy.scope():
        model = blstm.build_blstm(
            frames,
            log_mel.BANDS,
            num_classes,
            FLAGS.units,
            FLAGS.num_layers,
            FLAGS.bottleneck,
            per_frame=FLAGS.labels == "frame",
        )
        model.compile(
            optimizer=training.sgd(workers),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    workers.say(f"{name}: {model.count_params():,} parameters, {workers.count} workers")
    history, meter = training.fit(workers, model, batches, test)
    training.finish(
        workers,
        model,
        meter,
        dataset=name,
        recipe=training.sgd_recipe(),
        **{f"test_{FLAGS.labels}_accuracy": history["val_accuracy"][-1]},
    )


if __name__ == "__main__":
    app.run(main)
