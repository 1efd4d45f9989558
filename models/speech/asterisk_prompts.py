"""Recorded prompts of the Asterisk telephone system, in six voices, from Debian's packages.

3,300 clips, 2.5 hours of 8 kHz 16-bit mono, licences CC-BY-SA-3.0 and CC-BY-3.0. English and
Spanish are the same speaker. To tell the voices is partly to tell microphones: good for comparing
training methods, no measure of speech recognition.
"""

import pathlib
import wave

import numpy as np
import package_files

RATE = 8_000
PACKAGES = tuple(
    f"asterisk-{name}-wav"
    for name in (
        "core-sounds-en",
        "core-sounds-es",
        "core-sounds-fr",
        "core-sounds-it",
        "core-sounds-ru",
        "prompt-it-menardi",
    )
)
SOUNDS = "usr/share/asterisk/sounds"


def load(data_dir: pathlib.Path) -> list[tuple[int, str, np.ndarray]]:
    """Returns (voice 0 to 5, name of the prompt, float32 samples) of each clip.

    The packages are unpacked into `data_dir` where they are not there yet (116 MB, once).

    Raises:
        package_files.PackageUnavailableError: a package is neither here nor to be had.
        ValueError: a file is not 8 kHz 16-bit mono.
    """
    clips = []
    for voice, package in enumerate(PACKAGES):
        if not (data_dir / package).is_dir():
            package_files.unpack_debian_package(package, data_dir / package)
        (speaker,) = (data_dir / package / SOUNDS).iterdir()
        for path in sorted(speaker.rglob("*.wav")):
            name = path.relative_to(speaker).with_suffix("").as_posix()
            if not name.startswith("silence/"):
                clips.append((voice, name, read_wav(path)))
    return clips


def read_wav(path: pathlib.Path) -> np.ndarray:
    """float32 samples between -1 and 1."""
    with wave.open(str(path)) as sound:
        received = (sound.getframerate(), sound.getsampwidth(), sound.getnchannels())
        if received != (RATE, 2, 1):
            raise ValueError(
                f"Expected {path} to have {RATE} samples per second of 2 bytes in 1 channel; "
                f"received {received}. Remove its folder and run again to fetch it anew."
            )
        samples = sound.readframes(sound.getnframes())
    return np.frombuffer(samples, "<i2").astype(np.float32) / 32_768
