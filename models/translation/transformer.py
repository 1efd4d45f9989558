"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017), and its loss."""

import keras
import numpy as np

layers = keras.layers
ops = keras.ops

PADDING, BEGIN, END, UNKNOWN = range(4)


def build_transformer(
    vocabulary_size: int,
    num_layers: int = 6,
    width: int = 512,
    heads: int = 8,
    feed_forward: int = 2048,
    dropout: float = 0.1,
    source_length: int | None = None,
    target_length: int | None = None,
) -> keras.Model:
    """Encoder and decoder with one embedding for both languages and the output, as in the paper.

    Takes {"source": int32 (batch, source length), "target": int32 (batch, target length)} and
    returns logits (batch, target length, vocabulary). Position i of the logits has seen targets 0
    to i. Source positions of token `PADDING` are not attended to.

    With the defaults ("Transformer-base") it has 44,138,496 + 512 * vocabulary weights: 60.9
    million at 32,768 tokens, 63.1 million at 37,000. In general, with d = width, f = feed_forward,
        vocabulary * d + num_layers * (12 (d^2 + d) + 2 (2 d f + d + f) + 10 d).

    Args:
        vocabulary_size: tokens of both languages together.
        num_layers: of the encoder, and of the decoder.
        width: of the model.
        heads: of each attention; a divisor of `width`.
        feed_forward: width between the two dense layers of a block.
        dropout: share of each sublayer's output that is dropped in training.
        source_length: tokens; None takes any number, but leaves `compression_ratio="auto"` without
            the positions it counts.
        target_length: the same for the target.
    """
    if width % heads:
        raise ValueError(
            f"Expected `width` to be a multiple of `heads`; received {width} and {heads}. "
            "Choose, for instance, heads of 64."
        )
    embedding = layers.ReversibleEmbedding(
        vocabulary_size,
        width,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=width**-0.5),
        name="embedding",
    )
    shape = {"num_layers": num_layers, "heads": heads, "feed_forward": feed_forward}
    encoder = _encoder(embedding, source_length, dropout=dropout, **shape)
    decoder = _decoder(embedding, source_length, target_length, dropout=dropout, **shape)
    source = layers.Input((source_length,), dtype="int32", name="source")
    target = layers.Input((target_length,), dtype="int32", name="target")
    states = decoder([target, encoder(source), source])
    logits = embedding(states, reverse=True)
    return keras.Model({"source": source, "target": target}, logits, name="transformer")


def _encoder(embedding, length, num_layers, heads, feed_forward, dropout):
    """Source tokens -> states (batch, source length, width)."""
    source = layers.Input((length,), dtype="int32")
    seen = _not_padding(source)
    x = layers.Dropout(dropout)(AddPositions()(embedding(source)))
    for _ in range(num_layers):
        x = _attend(x, x, heads, dropout, attention_mask=seen)
        x = _feed_forward(x, feed_forward, dropout)
    return keras.Model(source, x, name="encoder")


def _decoder(embedding, source_length, target_length, num_layers, heads, feed_forward, dropout):
    """Target tokens, encoder's states, source tokens -> states (batch, target length, width)."""
    target = layers.Input((target_length,), dtype="int32")
    memory = layers.Input((source_length, embedding.output_dim))
    source = layers.Input((source_length,), dtype="int32")
    seen = _not_padding(source)
    x = layers.Dropout(dropout)(AddPositions()(embedding(target)))
    for _ in range(num_layers):
        # Padding stands at the end of a target: no position before it sees it.
        x = _attend(x, x, heads, dropout, use_causal_mask=True)
        x = _attend(x, memory, heads, dropout, attention_mask=seen)
        x = _feed_forward(x, feed_forward, dropout)
    return keras.Model([target, memory, source], x, name="decoder")


def _not_padding(tokens):
    """(batch, 1, length): each query may look at every token that is none of padding."""
    return ops.expand_dims(ops.not_equal(tokens, PADDING), 1)


def _attend(x, memory, heads, dropout, **mask):
    attention = layers.MultiHeadAttention(heads, x.shape[-1] // heads)
    return _joined(x, attention(x, memory, **mask), dropout)


def _feed_forward(x, feed_forward, dropout):
    hidden = layers.Dense(feed_forward, activation="relu")(x)
    return _joined(x, layers.Dense(x.shape[-1])(hidden), dropout)


def _joined(x, y, dropout):
    """LayerNorm(x + Dropout(y)): normalised after the sum, as in the paper."""
    return layers.LayerNormalization(epsilon=1e-6)(layers.Add()([x, layers.Dropout(dropout)(y)]))


@keras.saving.register_keras_serializable(package="tf_scalecom_models")
class AddPositions(layers.Layer):
    """Embeddings times sqrt(width), plus sines and cosines of the position (section 3.5)."""

    def call(self, x):
        length, width = ops.shape(x)[1], x.shape[-1]
        frequencies = np.exp(-np.log(10_000.0) * np.arange(0, width, 2) / width)
        angles = ops.expand_dims(ops.cast(ops.arange(length), "float32"), 1) * frequencies.astype(
            "float32"
        )
        waves = ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=1)[:, :width]
        return x * ops.cast(width**0.5, x.dtype) + ops.cast(waves, x.dtype)


@keras.saving.register_keras_serializable(package="tf_scalecom_models")
class SmoothedCrossentropy(keras.losses.Loss):
    """Cross-entropy of logits with tokens, a share of each spread over the vocabulary.

    (1 - smoothing) * -log p(token) + smoothing * mean over all tokens of -log p. Its mean is over
    the sample weights, which are 0 at padding: the mean over real tokens.
    """

    def __init__(self, smoothing: float = 0.1, name: str = "smoothed_crossentropy"):
        super().__init__(name=name, reduction="mean_with_sample_weight")
        self.smoothing = smoothing

    def call(self, y_true, y_pred):
        log_p = ops.log_softmax(ops.cast(y_pred, "float32"))
        tokens = ops.expand_dims(ops.cast(y_true, "int32"), -1)
        right = ops.squeeze(ops.take_along_axis(log_p, tokens, axis=-1), -1)
        return -(1 - self.smoothing) * right - self.smoothing * ops.mean(log_p, axis=-1)

    def get_config(self):
        return {"smoothing": self.smoothing, "name": self.name}
