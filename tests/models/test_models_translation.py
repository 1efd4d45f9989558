"""The Transformer, its loss, its search and its data."""

import itertools
import math

import beam_search
import debian_descriptions
import keras
import next_character_task
import numpy as np
import package_files
import pytest
import subwords
import tensorflow as tf
import tensorflow_datasets as tfds
import transformer
import translation_data
import wmt14
from hyperparameters import ratio_of, stated_ratios

from tf_scalecom.simulate import Simulation, SimulationConfig
from tf_scalecom.wire.auto_ratio import auto_ratios

ALONE = tf.distribute.get_strategy()
SENTENCES = [f"{a} {b} {c}" for a in ("the", "a") for b in ("red", "old") for c in ("cat", "dogs")]


def small_transformer():
    keras.utils.set_random_seed(0)
    return transformer.build_transformer(
        20, num_layers=1, width=16, heads=2, feed_forward=24, dropout=0.0
    )


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).integers(4, 20, shape).astype(np.int32)


def test_transformer_base_has_the_known_number_of_weights_and_auto_rates():
    model = transformer.build_transformer(32_768, source_length=32, target_length=32)
    assert model.count_params() == 44_138_496 + 512 * 32_768 == 60_915_712
    # Sentences of 32 tokens: every matrix is used at few positions.
    assert set(auto_rates(model).values()) == {1, 400}


def test_the_papers_transformer_comes_to_the_stated_ratio():
    model = transformer.build_transformer(37_000)
    ratio = round(ratio_of(model.trainable_variables, 47))
    assert stated_ratios("Transformer-base, WMT14 En-De") == [ratio] * 2


def auto_rates(model):
    paths = [v.path for v in model.trainable_variables]
    return dict(zip(paths, auto_ratios(model.trainable_variables, paths), strict=True))


def test_auto_counts_the_tokens_a_matrix_is_used_at():
    model = transformer.build_transformer(
        50, 1, width=64, heads=2, feed_forward=128, source_length=150, target_length=32
    )
    rates = [
        (v.path.split("/")[-2], v.shape, rate)
        for v, rate in zip(
            model.get_layer("decoder").trainable_variables,
            auto_rates(model.get_layer("decoder")).values(),
            strict=True,
        )
        if len(v.shape) > 1 and "attention" in v.path
    ]
    projections = ["query", "key", "value", "attention_output"]
    kernels = [(name, rate) for name, shape, rate in rates if len(shape) == 3]
    of_targets = [(name, 400) for name in projections]
    of_sources = [("query", 400), ("key", 50), ("value", 50), ("attention_output", 400)]
    assert kernels == of_targets + of_sources


@pytest.mark.parametrize(("layers", "width", "hidden"), [(1, 8, 12), (3, 16, 40)])
def test_the_formula_of_the_number_of_weights(layers, width, hidden):
    model = transformer.build_transformer(50, layers, width, heads=2, feed_forward=hidden)
    d, f = width, hidden
    formula = 50 * d + layers * (12 * (d * d + d) + 2 * (2 * d * f + d + f) + 10 * d)
    assert model.count_params() == formula


def test_no_position_sees_what_comes_after_it():
    model = small_transformer()
    source, target = tokens(3, 6), tokens(3, 7, seed=1)
    changed = target.copy()
    changed[:, 4:] = tokens(3, 3, seed=2)
    before, after = (model({"source": source, "target": t}).numpy() for t in (target, changed))
    np.testing.assert_allclose(before[:, :4], after[:, :4], atol=1e-5)
    assert np.abs(before[:, 4:] - after[:, 4:]).max() > 1e-2


def test_padding_of_the_source_changes_nothing():
    model = small_transformer()
    source, target = tokens(3, 6), tokens(3, 7, seed=1)
    longer = np.pad(source, [(0, 0), (0, 5)])
    np.testing.assert_allclose(
        model({"source": source, "target": target}),
        model({"source": longer, "target": target}),
        atol=1e-5,
    )


def test_smoothed_crossentropy_is_its_formula_over_real_tokens():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 5)).astype(np.float32)
    labels, weights = np.array([[1, 2, 4], [3, 0, 0]]), np.array([[1, 1, 1], [1, 0, 0]], np.float32)
    p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    wanted = 0.9 * np.eye(5)[labels] + 0.1 / 5
    each = -(wanted * np.log(p)).sum(axis=-1)
    received = transformer.SmoothedCrossentropy(0.1)(labels, logits, sample_weight=weights)
    assert float(received) == pytest.approx((each * weights).sum() / 4, rel=1e-5)


def markov_chain(vocabulary, seed=0):
    """log p of the next token, of the last token alone; `PADDING` and `BEGIN` never come."""
    weights = np.random.default_rng(seed).normal(size=(vocabulary, vocabulary)).astype(np.float32)
    weights[:, [transformer.PADDING, transformer.BEGIN]] = -30
    return weights - np.log(np.exp(weights).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_wide_beam_finds_the_best_translation(alpha):
    """Of all sequences up to four tokens, those that do not end cut short, as by the search."""
    vocabulary, length = 6, 4
    chain = markov_chain(vocabulary)

    def log_probabilities(prefixes, position):
        return tf.gather(chain, prefixes[:, :, position])

    found = beam_search.search(log_probabilities, 2, length, beam=vocabulary**3, alpha=alpha)

    def score(sequence):
        total = sum(chain[a, b] for a, b in itertools.pairwise((transformer.BEGIN, *sequence)))
        return total / ((5 + len(sequence)) / 6) ** alpha

    words = [transformer.UNKNOWN, 4, 5]
    ended = [
        (*start, transformer.END)
        for n in range(length)
        for start in itertools.product(words, repeat=n)
    ]
    best = max([*ended, *itertools.product(words, repeat=length)], key=score)
    wanted = np.pad(best, (0, length - len(best)))
    np.testing.assert_array_equal(found, [wanted, wanted])


@pytest.mark.parametrize("seed", [0, 15, 20, 28])  # the latter differ without the penalty
def test_a_narrow_beam_keeps_the_best_for_their_length(seed):
    """Against the same rule on lists of words."""
    vocabulary, length, beam, alpha = 8, 6, 2, 3.0
    chain = markov_chain(vocabulary, seed)

    def rank(hypothesis):
        words, log_p = hypothesis
        return log_p / ((5 + len(words)) / 6) ** alpha

    def continued(hypothesis):
        words, log_p = hypothesis
        if words and words[-1] == transformer.END:
            return [hypothesis]
        last = words[-1] if words else transformer.BEGIN
        return [((*words, word), log_p + chain[last, word]) for word in range(vocabulary)]

    hypotheses = [((), 0.0)]
    for _ in range(length):
        candidates = [longer for each in hypotheses for longer in continued(each)]
        hypotheses = sorted(candidates, key=rank, reverse=True)[:beam]
    best, _ = hypotheses[0]

    def log_probabilities(prefixes, position):
        return tf.gather(chain, prefixes[:, :, position])

    found = beam_search.search(log_probabilities, 1, length, beam, alpha)
    np.testing.assert_array_equal(found, [np.pad(best, (0, length - len(best)))])


def test_a_beam_of_one_is_greedy_and_ends_at_end():
    model = small_transformer()
    embedding = model.get_layer("embedding")
    rows = embedding.embeddings.numpy()
    rows[transformer.END] *= 4  # now and then the likeliest
    embedding.embeddings.assign(rows)
    source = tokens(12, 6)
    translator = beam_search.Translator(model, max_length=9, beam=1, alpha=0.0)
    received = translator.predict(source, verbose=0)

    target = np.full((12, 1), transformer.BEGIN, np.int32)
    for _ in range(9):
        logits = model({"source": source, "target": target}).numpy()
        target = np.concatenate([target, logits[:, -1:].argmax(axis=-1)], axis=1, dtype=np.int32)
    assert (target == transformer.END).any(), "or the test tells little"
    for row, greedy in zip(received, target[:, 1:], strict=True):
        ends = np.flatnonzero(greedy == transformer.END)
        stop = ends[0] + 1 if len(ends) else 9
        np.testing.assert_array_equal(row[:stop], greedy[:stop])
        assert not row[stop:].any()


def translate(strategy, source):
    """Runs on every worker."""
    with strategy.scope():
        model = small_transformer()
        translator = beam_search.Translator(model, max_length=9, beam=3)
    return translator.predict(tf.data.Dataset.from_tensor_slices(source).batch(4), verbose=0)


def test_workers_share_out_sentences_and_each_gets_all_translations(cluster):
    source = tokens(10, 6)
    alone = translate(ALONE, source)
    for received in cluster(2).run(translate, source=source, timeout=120):
        np.testing.assert_array_equal(received, alone)


def test_a_vocabulary_is_the_same_wherever_it_is_learned(tmp_path):
    files = [tmp_path / "worker0" / "words.model", tmp_path / "worker1" / "words.model"]
    first, second = (subwords.learn(SENTENCES * 5, 40, file) for file in files)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert first.size == second.size <= 40
    encoded = first.encode(SENTENCES)
    assert all(token > transformer.UNKNOWN for row in encoded for token in row)
    ended = [[*row, transformer.END, 7, transformer.PADDING] for row in encoded]
    assert first.decode(ended) == SENTENCES
    assert [path.name for path in files[0].parent.iterdir()] == ["words.model"]


def test_the_decoder_sees_what_stands_before_its_label():
    source = np.array([[5, 6, 2, 0]], np.int32)
    inputs, labels, weights = translation_data.example(source, np.array([[7, 8, 9, 2]], np.int32))
    assert inputs["target"].numpy().tolist() == [[transformer.BEGIN, 7, 8, 9]]
    assert labels.numpy().tolist() == [[7, 8, 9, transformer.END]]
    assert weights.numpy().tolist() == [[1, 1, 1, 1]]
    _, _, weights = translation_data.example(source, source)
    assert weights.numpy().tolist() == [[1, 1, 1, 0]]


ENGLISH = """Package: a
Description-md5: 01
Description-en: small tool
 It is small.  It
 is quick. It is here.
 .
 One
 .
 left over

Package: b
Description-md5: 02
Description-en: not translated

"""
GERMAN = """Package: a
Description-md5: 01
Description-de: kleines Werkzeug
 Es ist klein. Es ist
 schnell. Es ist hier.
 .
 Eins
 .
 Der Rest. Und mehr.

"""


def test_descriptions_become_pairs_of_sentences(tmp_path):
    folder = tmp_path / debian_descriptions.FOLDER
    folder.mkdir()
    (folder / "Translation-en").write_text(ENGLISH)
    (folder / "Translation-de").write_text(GERMAN)
    train, test = debian_descriptions.load(tmp_path)
    assert sorted(train + test) == [
        ("It is here.", "Es ist hier."),
        ("It is quick.", "Es ist schnell."),
        ("It is small.", "Es ist klein."),
        ("One", "Eins"),
        ("small tool", "kleines Werkzeug"),
    ]


def test_descriptions_come_from_apts_lists(tmp_path, monkeypatch):
    """With programs in the place of apt's: lists are asked for by language, in a folder of ours."""
    programs = {
        "apt-get": 'case "$*" in *Languages::=en*Languages::=de*update) ;; *) exit 1;; esac\n'
        'lists=$(echo "$*" | sed "s/.*Dir::State::lists=\\([^ ]*\\).*/\\1/")\n'
        "for code in en de; do echo $code text > $lists/host_main_i18n_Translation-$code.lz4; done",
        "apt-helper": 'shift; cat "$@"',
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(package_files, "APT_HELPER", str(tmp_path / "apt-helper"))
    package_files.fetch_descriptions(["en", "de"], tmp_path / "data" / "texts")
    received = {path.name: path.read_text() for path in (tmp_path / "data" / "texts").iterdir()}
    assert received == {"Translation-en": "en text\n", "Translation-de": "de text\n"}
    with pytest.raises(package_files.PackageUnavailableError, match="descriptions in 'fr'"):
        package_files.fetch_descriptions(["en", "de", "fr"], tmp_path / "data" / "more")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["texts"]


def test_an_epoch_of_pairs_shows_each_once(tmp_path):
    vocabulary = subwords.learn(SENTENCES * 5, 40, tmp_path / "words.model")
    pairs = translation_data.encode(vocabulary, list(zip(SENTENCES, SENTENCES[::-1], strict=True)))
    rows = translation_data.padded(pairs, 16)
    data = translation_data.TextData("toy", vocabulary, rows, rows[:3], SENTENCES[-3:][::-1])
    batches = translation_data.training_dataset(data, 4, seed=0).take(2)
    seen = np.concatenate([labels for _, labels, _ in batches])
    np.testing.assert_array_equal(np.unique(seen, axis=0), np.unique(rows[:, 1], axis=0))
    ((inputs, labels, _),) = translation_data.test_dataset(data, 4)
    assert vocabulary.decode(inputs["source"].numpy()) == SENTENCES[:3]
    assert vocabulary.decode(labels.numpy()) == data.references


@pytest.fixture
def mocked_wmt14():
    def sentences(builder, **_):
        texts = {"en": [f"{s} {s}" for s in SENTENCES], "de": SENTENCES[::-1]}
        return tf.data.Dataset.from_tensor_slices(texts)

    with tfds.testing.mock_data(as_dataset_fn=sentences):
        yield


@pytest.mark.usefixtures("mocked_wmt14")
def test_wmt14_comes_in_batches_of_about_as_many_tokens(tmp_path):
    vocabulary = wmt14.load_vocabulary(str(tmp_path), 40)
    lengths = [len(row) + 1 for row in vocabulary.encode([f"{s} {s}" for s in SENTENCES])]
    longest = sorted(lengths)[-2]  # leaves out the longest
    batches = wmt14.training_dataset(ALONE, str(tmp_path), vocabulary, 64, longest, seed=0)
    for inputs, labels, weights in batches.take(20):
        sentences, length = inputs["source"].shape
        assert labels.shape == weights.shape == inputs["target"].shape == (sentences, length)
        assert length <= longest and sentences == 64 // length
        assert (np.count_nonzero(inputs["source"], axis=1) > 4).all()
    test = wmt14.load_test(str(tmp_path), vocabulary, length=6)
    assert len(test.test) == 8 and test.test.shape == (8, 2, 6), "cut, not left out"
    assert test.references == SENTENCES[::-1]


def test_wmt14_has_the_features_that_are_read(tmp_path):
    with tfds.testing.mock_data(num_examples=3):
        pairs = wmt14._pairs(wmt14.tfds_source.read(wmt14.NAME, "test", str(tmp_path), wmt14.ALONE))
    assert len(pairs) == 3 and all(math.prod(map(len, pair)) for pair in pairs)


# --- The next character --------------------------------------------------------------------------


def test_characters_are_told_from_those_before_them():
    task = next_character_task.NextCharacterTask(["abc" * 20, "Ä é" * 9], ["abc" * 30])
    assert task.train_size == 60 + 1 + 27 - next_character_task.CONTEXT
    batch = task.batch(np.array([0, 44, 50]))
    assert batch.shape == (3, next_character_task.CONTEXT + 1)
    assert "".join(chr(32 + c) for c in batch[0]) == ("abc" * 20)[:17]
    # An end of line and what is not ASCII are one character.
    assert batch[1, -1] == batch[2, 10] == batch[2, 11] == next_character_task.CHARACTERS - 1
    config = SimulationConfig(learners=2, batch_size=8, steps=80, learning_rate=0.5)
    simulation = Simulation(task, config)
    assert simulation.model.count_params() == 46_816
    for _ in range(config.steps):
        simulation.advance()
    assert task.evaluate(simulation.model)["character_accuracy"] > 0.9  # chance: a third
