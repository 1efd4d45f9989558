"""Trains a Transformer to translate English to German: alone, or on TF_CONFIG's workers.

Examples:
    python models/translation/train.py --epochs 1
    python -m tf_scalecom run -n 2 models/translation/train.py --compression_ratio 100 \
        --adam_beta_1 0 --adam_beta_2 0.999 --learning_rate 4e-3
    python models/translation/train.py --dataset wmt14 --data_dir /data/tfds --num_layers 6 \
        --width 512 --heads 8 --feed_forward 2048 --vocabulary 37000 --batch_per_worker 4500
"""

import pathlib
import sys

import keras
import sacrebleu
import tensorflow as tf
from absl import app, flags

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))  # what all tasks share

import beam_search
import schedules
import shared_flags
import training
import transformer
import translation_data
import wmt14

FLAGS = flags.FLAGS
shared_flags.define_flags(
    learning_rate=2e-3, epochs=2, steps_per_epoch=300, warmup_steps=120, warmup="ramp"
)
flags.DEFINE_enum("dataset", "debian", ["debian", "wmt14"], "Package descriptions, or WMT 2014.")
shared_flags.define_count("vocabulary", 4_000, "Tokens of both languages together.")
shared_flags.define_count("max_length", 32, "Tokens of a sentence; longer pairs are left out.")
shared_flags.define_count("num_layers", 2, "Layers of the encoder, and of the decoder.")
shared_flags.define_count("width", 96, "Of the model.")
shared_flags.define_count("heads", 4, "Of each attention.")
shared_flags.define_count("feed_forward", 384, "Width between the dense layers of a block.")
shared_flags.define_share("dropout", 0.1, "Share of each sublayer's output dropped in training.")
shared_flags.define_share("smoothing", 0.1, "Share of each label spread over the vocabulary.")
shared_flags.define_count("ramp_steps", 200, "Steps to the peak learning rate; then 1 / sqrt step.")
shared_flags.define_share("adam_beta_1", 0.9, "Decay of Adam's mean of gradients; compress with 0.")
shared_flags.define_share("adam_beta_2", 0.98, "Decay of Adam's mean of squares.")
shared_flags.define_count("beam", 4, "Hypotheses kept by beam search.")
flags.DEFINE_integer(
    "bleu_sentences", 256, "Held-out sentences translated for BLEU; 0: all.", lower_bound=0
)


def load_data(workers: training.Workers):
    """Returns (data, training batches)."""
    if FLAGS.dataset == "debian":
        data = translation_data.load(
            pathlib.Path(FLAGS.data_dir), FLAGS.vocabulary, FLAGS.max_length
        )
        return data, translation_data.training_dataset(data, workers.global_batch, FLAGS.seed)
    vocabulary = wmt14.load_vocabulary(FLAGS.data_dir, FLAGS.vocabulary)
    return wmt14.load_test(FLAGS.data_dir, vocabulary, FLAGS.max_length), wmt14.training_dataset(
        workers.strategy,
        FLAGS.data_dir,
        vocabulary,
        FLAGS.batch_per_worker,
        FLAGS.max_length,
        FLAGS.seed,
    )


def build_optimizer(workers: training.Workers) -> keras.optimizers.Optimizer:
    """Adam, by default as in the paper of the Transformer, compressed if a ratio is given."""
    peak = training.scaled(FLAGS.learning_rate, workers, exponent=0.5)
    schedule = schedules.Noam(peak, FLAGS.ramp_steps)
    return training.compressed(
        keras.optimizers.Adam(schedule, FLAGS.adam_beta_1, FLAGS.adam_beta_2, epsilon=1e-9)
    )


def bleu(workers: training.Workers, model: keras.Model, data: translation_data.TextData) -> float:
    """BLEU by sacrebleu of held-out sentences; every worker translates its share of them."""
    count = FLAGS.bleu_sentences or len(data.references)
    with workers.strategy.scope():
        translator = beam_search.Translator(model, FLAGS.max_length, FLAGS.beam)
    sources = tf.data.Dataset.from_tensor_slices(data.test[:count, 0]).batch(32 * workers.count)
    tokens = translator.predict(sources, verbose=0)
    translations = data.vocabulary.decode(tokens)
    workers.say(f"for example: {translations[0]}\nreference: {data.references[0]}")
    return sacrebleu.corpus_bleu(translations, [data.references[:count]]).score


def main(argv):
    """Builds strategy, data and model from the flags, fits, and translates."""
    if argv[1:]:
        raise app.UsageError(f"Expected flags only; received {argv[1:]}. See --help.")
    workers = training.start()
    data, batches = load_data(workers)
    # WMT's batches have many lengths; those of the descriptions one, which "auto" needs to know.
    length = FLAGS.max_length if FLAGS.dataset == "debian" else None
    with workers.strategy.scope():
        model = transformer.build_transformer(
            data.vocabulary.size,
            FLAGS.num_layers,
            FLAGS.width,
            FLAGS.heads,
            FLAGS.feed_forward,
            FLAGS.dropout,
            source_length=length,
            target_length=length,
        )
        model.compile(
            optimizer=build_optimizer(workers),
            loss=transformer.SmoothedCrossentropy(FLAGS.smoothing),
            weighted_metrics=["accuracy"],
        )
    workers.say(
        f"{data.name}: {len(data.test):,} held-out pairs, {data.vocabulary.size:,} tokens, "
        f"{model.count_params():,} parameters, {workers.count} workers"
    )
    held_out = translation_data.test_dataset(data, 64 * workers.count)
    history, meter = training.fit(workers, model, batches, held_out)
    training.finish(
        workers,
        model,
        meter,
        dataset=data.name,
        recipe=f"Adam of {FLAGS.adam_beta_1} and {FLAGS.adam_beta_2}, peak learning rate "
        f"{FLAGS.learning_rate} after {FLAGS.ramp_steps} steps, {FLAGS.batch_per_worker} per "
        f"worker, seed {FLAGS.seed}",
        bleu=bleu(workers, model, data),
        test_token_accuracy=history["val_accuracy"][-1],
        test_loss=history["val_loss"][-1],
    )


if __name__ == "__main__":
    app.run(main)
