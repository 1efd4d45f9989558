"""train.py of translation and speech, on two workers, small networks and made-up data."""

import itertools
import json
import subprocess
import sys
import wave

import asterisk_prompts
import debian_descriptions
import numpy as np
import pytest

WORDS = {"red": "rote", "old": "alte", "new": "neue", "big": "große", "cat": "Katze",
         "house": "Villa", "door": "Tür", "clock": "Uhr"}  # fmt: skip


def write_descriptions(folder):
    """Packages "a red old new cat", "a red old new house", ... and their German titles."""
    adjectives, nouns = list(WORDS)[:4], list(WORDS)[4:]
    texts = {"en": [], "de": []}
    for number, words in enumerate(itertools.product(adjectives, adjectives, adjectives, nouns)):
        head = f"Package: p{number}\nDescription-md5: {number:02x}\n"
        german = " ".join(WORDS[word] for word in words)
        texts["en"].append(f"{head}Description-en: a {' '.join(words)}\n")
        texts["de"].append(f"{head}Description-de: eine {german}\n")
    (folder / debian_descriptions.FOLDER).mkdir()
    for code, records in texts.items():
        path = folder / debian_descriptions.FOLDER / f"Translation-{code}"
        path.write_text("\n".join(records), encoding="utf-8")


def write_prompts(folder):
    """Each voice wavers around its own tone."""
    seconds = np.arange(asterisk_prompts.RATE) / asterisk_prompts.RATE
    wavering = 20 * np.sin(2 * np.pi * 3 * seconds)
    for voice, package in enumerate(asterisk_prompts.PACKAGES):
        sounds = folder / package / asterisk_prompts.SOUNDS / "voice"
        sounds.mkdir(parents=True)
        samples = 9_000 * np.sin(2 * np.pi * (300 + 500 * voice) * seconds + wavering)
        for prompt in range(9):
            with wave.open(str(sounds / f"{prompt}.wav"), "wb") as sound:
                sound.setparams((1, 2, asterisk_prompts.RATE, 0, "NONE", ""))
                sound.writeframes(samples.astype("<i2").tobytes())


TRANSLATION = ["--vocabulary=60", "--max_length=16", "--num_layers=1", "--width=32", "--heads=2",
               "--feed_forward=64", "--dropout=0", "--beam=2", "--bleu_sentences=0",
               "--adam_beta_1=0", "--adam_beta_2=0.999", "--learning_rate=0.01",
               "--ramp_steps=20", "--steps_per_epoch=120"]  # fmt: skip
SPEECH = ["--num_layers=1", "--units=16", "--bottleneck=16", "--labels=utterance",
          "--steps_per_epoch=50"]  # fmt: skip


@pytest.mark.multi_worker
@pytest.mark.parametrize(
    ("task", "write_data", "flags", "figure", "least"),
    [
        ("translation", write_descriptions, TRANSLATION, "bleu", 40),
        ("speech", write_prompts, SPEECH, "test_utterance_accuracy", 0.8),
    ],
)
@pytest.mark.slow
def test_two_workers_learn(task, write_data, flags, figure, least, tmp_path, pytestconfig):
    write_data(tmp_path)
    command = [
        *[sys.executable, "-m", "tf_scalecom", "run", "-n", "2", f"--log-dir={tmp_path}"],
        str(pytestconfig.rootpath / "models" / task / "train.py"),
        *[f"--data_dir={tmp_path}", f"--result={tmp_path / 'result.json'}", *flags],
        *["--compression_ratio=4", "--warmup_steps=5", "--epochs=1"],
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    measured = json.loads((tmp_path / "result.json").read_text())
    assert measured[figure] >= least
    assert measured["ratio"] > 2 and measured["workers"] == 2
    assert f"{figure}: " in done.stdout
