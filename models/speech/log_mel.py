"""Samples of sound as log energies of mel bands, and which frames hold speech."""

import tensorflow as tf

BANDS = 40
SPEECH_RANGE = 3.5  # of log10 energy: a frame 35 dB under the loudest is silence


def log_mel(samples, rate: int, window_seconds: float, hop_seconds: float):
    """Natural logarithms of the energy in 40 mel bands from 60 Hz to 95 % of half the rate.

    Args:
        samples: float32 (n,) between -1 and 1.
        rate: samples per second.
        window_seconds: of a frame (Hann).
        hop_seconds: from frame to frame.

    Returns:
        float32 (frames, 40); frames = 1 + (n - window) // hop, none if n is shorter than a window.
    """
    window, hop = round(window_seconds * rate), round(hop_seconds * rate)
    spectra = tf.abs(tf.signal.stft(samples, window, hop)) ** 2
    to_mel = tf.signal.linear_to_mel_weight_matrix(
        BANDS, spectra.shape[-1], rate, lower_edge_hertz=60.0, upper_edge_hertz=0.475 * rate
    )
    # 1e-6 is about what rounding to 16 bits leaves in a frame.
    return tf.math.log(spectra @ to_mel + 1e-6)


def standardised(log_energies):
    """Each band with mean 0 and deviation 1 over the clip, which takes out the loudness."""
    mean, variance = tf.nn.moments(log_energies, axes=[0], keepdims=True)
    return (log_energies - mean) * tf.math.rsqrt(variance + 1e-3)


def is_speech(log_energies):
    """bool (frames,): within 35 dB of the clip's loudest frame."""
    loudness = tf.reduce_logsumexp(log_energies, axis=1) / tf.math.log(10.0)
    return loudness > tf.reduce_max(loudness) - SPEECH_RANGE
