"""The acoustic model, its features and its data."""

import hashlib
import wave

import asterisk_prompts
import blstm
import keras
import log_mel
import numpy as np
import pytest
import speech_data
import tensorflow as tf
import tensorflow_datasets as tfds
import tfds_speech
from hyperparameters import ratio_of, stated_ratios

import tf_scalecom as sc

ALONE = tf.distribute.get_strategy()
RATE = asterisk_prompts.RATE


def tone(hertz, seconds, rate=RATE):
    return np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate).astype(np.float32)


def test_the_papers_network_has_the_counted_weights_and_stated_rates():
    model = blstm.build_blstm(frames=21, features=260, num_classes=32_000)
    first, later = (8 * (512 * (inputs + 512) + 512) for inputs in (260, 1024))
    assert model.count_params() == first + 3 * later + (1024 + 1) * 256 + (256 + 1) * 32_000
    assert model.count_params() == 30_539_264
    ratios = [round(ratio_of(model.trainable_variables, ratio)) for ratio in (400, 100)]
    assert stated_ratios("4-layer bidirectional LSTM, SWB300") == ratios
    optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(), compression_ratio="auto")
    optimizer.build(model.trainable_variables)
    matrices = [r for r in optimizer.compression_report(num_replicas=4).rows if len(r.shape) > 1]
    # Of 21 positions at most.
    assert {round(row.elements / row.kept) for row in matrices} == {400}


@pytest.mark.parametrize(("per_frame", "shape"), [(True, (3, 7, 5)), (False, (3, 5))])
def test_a_label_for_each_frame_or_for_all_together(per_frame, shape):
    model = blstm.build_blstm(7, 4, 5, units=6, num_layers=2, bottleneck=3, per_frame=per_frame)
    windows = np.random.default_rng(0).normal(size=(3, 7, 4)).astype(np.float32)
    before = model(windows).numpy()
    assert before.shape == shape
    windows[:, -1] += 1  # both directions: the first frame knows of the last
    changed = np.abs(model(windows).numpy() - before).reshape(3, -1, 5).max(axis=(0, 2))
    assert (changed > 1e-6).all()


def test_a_tone_is_in_the_bands_of_its_frequency():
    def loudest_band(hertz):
        energies = log_mel.log_mel(tone(hertz, 0.5), RATE, 0.032, 0.020).numpy()
        assert energies.shape == (1 + (4_000 - 256) // 160, log_mel.BANDS)
        return energies.mean(axis=0).argmax()

    bands = [loudest_band(hertz) for hertz in (200, 500, 1_000, 2_000, 3_500)]
    assert bands == sorted(bands) and len(set(bands)) == 5
    assert bands[0] < 6 and bands[-1] > 35


def test_frames_of_the_loud_part_are_speech():
    samples = np.concatenate([tone(300, 1) * 1e-3, tone(300, 1), tone(300, 1) * 1e-3])
    energies = log_mel.log_mel(samples, RATE, 0.032, 0.020)
    speech = log_mel.is_speech(energies).numpy()
    assert speech[52:97].all() and not speech[:48].any() and not speech[102:].any()


def test_loudness_is_taken_out():
    quiet, loud = (
        log_mel.standardised(log_mel.log_mel(gain * noise, RATE, 0.032, 0.020)).numpy()
        for noise in [np.random.default_rng(0).normal(size=RATE).astype(np.float32)]
        for gain in (0.1, 1.0)
    )
    np.testing.assert_allclose(quiet, loud, atol=1e-2)
    np.testing.assert_allclose(loud.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(loud.std(axis=0), 1, atol=1e-2)


def write_wav(path, samples, rate=RATE):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes((samples * 32_767).astype("<i2").tobytes())


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Packages of six voices that say ten prompts each: a tone of 1.5 s, then as much silence."""
    folder = tmp_path_factory.mktemp("recordings")
    for voice, package in enumerate(asterisk_prompts.PACKAGES):
        sounds = folder / package / asterisk_prompts.SOUNDS / f"voice{voice}"
        for prompt in range(10):
            samples = np.concatenate([tone(200 + 300 * voice, 1.5), np.zeros(RATE * 3 // 2)])
            write_wav(sounds / "digits" / f"{prompt}.wav", samples / 2)
        write_wav(sounds / "silence" / "1.wav", np.zeros(RATE))
    return folder


def test_clips_are_read_with_voice_and_prompt(recordings):
    clips = asterisk_prompts.load(recordings)
    assert [voice for voice, _, _ in clips] == [v for v in range(6) for _ in range(10)]
    assert [name for _, name, _ in clips[:10]] == [f"digits/{i}" for i in range(10)]
    np.testing.assert_allclose(clips[0][2][:RATE], tone(200, 1) / 2, atol=1e-4)


def test_another_kind_of_sound_is_refused(tmp_path):
    write_wav(tmp_path / "fast.wav", np.zeros(10), rate=16_000)
    with pytest.raises(ValueError, match=r"fast\.wav.*received \(16000, 2, 1\)"):
        asterisk_prompts.read_wav(tmp_path / "fast.wav")


def test_frames_have_the_label_of_their_voice_or_of_silence(recordings):
    data = speech_data.load(recordings, per_frame=True)
    held_out = sum(hashlib.sha256(f"digits/{i}".encode()).digest()[0] % 5 == 0 for i in range(10))
    assert 0 < held_out < 10
    # Of three seconds one is all tone; of the next half a second, which is no more than half.
    assert len(data.test) == 6 * held_out and len(data.train) == 6 * (10 - held_out)
    assert data.train.shape[1:] == (50, 40) and data.train.dtype == np.float32
    assert data.num_classes == 7 and data.train_labels.shape == data.train.shape[:2]
    assert set(np.unique(data.train_labels)) == set(range(6))
    windows = speech_data.load(recordings, per_frame=False)
    np.testing.assert_array_equal(windows.train_labels, data.train_labels[:, 0])
    assert windows.num_classes == 6


def test_an_epoch_of_windows_shows_each_once(recordings):
    data = speech_data.load(recordings, per_frame=False)
    size = len(data.train)
    ((windows, labels),) = speech_data.training_dataset(data, size, seed=0).take(1)
    assert np.bincount(labels).tolist() == np.bincount(data.train_labels).tolist()
    assert labels.numpy().tolist() != data.train_labels.tolist()
    by_voice = [windows.numpy()[labels == voice].mean(axis=(0, 1)) for voice in range(6)]
    wanted = [data.train[data.train_labels == voice].mean(axis=(0, 1)) for voice in range(6)]
    np.testing.assert_allclose(by_voice, wanted, atol=1e-5)
    assert sum(len(labels) for _, labels in speech_data.test_dataset(data, 5)) == len(data.test)


@pytest.mark.parametrize(("per_frame", "shape"), [(True, (4, 98)), (False, (4,))])
def test_speech_commands_are_windows_of_a_second(per_frame, shape, tmp_path):
    with tfds.testing.mock_data(num_examples=6):
        data = tfds_speech.speech_commands(str(tmp_path), per_frame)
        ((windows, labels),) = data.training(ALONE, batch_per_worker=4, seed=0).take(1)
        held_out = [len(labels) for _, labels in data.test(ALONE, batch_per_worker=4)]
    assert windows.shape == (4, data.frames, log_mel.BANDS) and labels.shape == shape
    assert np.isfinite(windows).all() and labels.dtype == tf.int32
    assert held_out == [4, 2]


@pytest.fixture
def mocked_librispeech():
    """Three utterances of 0.6, 0.7 and 0.8 seconds: 58, 68 and 78 frames."""

    def utterances(builder, **_):
        assert {"speech", "text", "id"} <= builder.info.features.keys()
        noise = np.random.default_rng(0).integers(-9_000, 9_000, 12_800).astype(np.int16)
        lengths = tf.constant([9_600, 11_200, 12_800])
        examples = {"length": lengths, "text": ["AB", "IT'S", "Z"], "id": ["1", "2", "3"]}
        return tf.data.Dataset.from_tensor_slices(examples).map(
            lambda example: example | {"speech": tf.constant(noise)[: example["length"]]}
        )

    with tfds.testing.mock_data(as_dataset_fn=utterances):
        yield


@pytest.mark.usefixtures("mocked_librispeech")
def test_librispeech_starts_flat(tmp_path):
    data = tfds_speech.librispeech(str(tmp_path), frames=21)
    ((windows, labels),) = data.test(ALONE, batch_per_worker=9)
    assert windows.shape == (2 + 3 + 3, 21, log_mel.BANDS)
    spoken = ["".join(tfds_speech.CHARACTERS[i] for i in row) for row in labels.numpy()]
    # 58 frames of "AB": 29 of each. Of the 68 of "IT'S", 17 of each.
    assert spoken[0] + spoken[1] == "A" * 29 + "B" * 13
    assert "".join(spoken[2:5]) == "I" * 17 + "T" * 17 + "'" * 17 + "S" * 12
    assert data.num_classes == 28


@pytest.mark.usefixtures("mocked_librispeech")
def test_librispeech_takes_a_recognisers_alignment(tmp_path):
    alignments = tmp_path / "alignments.txt"
    first, third = [i % 9 for i in range(58)], [11] * 76
    alignments.write_text(
        "\n".join(
            f"{name} {' '.join(map(str, labels))}" for name, labels in (("1", first), ("3", third))
        )
    )
    data = tfds_speech.librispeech(str(tmp_path), frames=21, alignments=alignments)
    ((windows, labels),) = data.test(ALONE, batch_per_worker=9)
    assert len(windows) == 2 + 3, "an utterance without a line is left out"
    np.testing.assert_array_equal(labels[:2], np.reshape(first[:42], (2, 21)))
    assert (labels[2:].numpy() == 11).all() and data.num_classes == 12
    ((_, labels),) = data.training(ALONE, batch_per_worker=64, seed=0).take(1)
    assert labels.shape == (64, 21)
