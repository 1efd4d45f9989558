"""Beam search as a Keras model, so that `predict` shares the sentences out to workers."""

import keras
import transformer

ops = keras.ops
IMPOSSIBLE = -1e9


class Translator(keras.Model):
    """Source tokens (batch, source length) -> tokens of the best translations, int32.

    The result has shape (batch, max_length): without the begin token, `END` after the last word,
    `PADDING` after that. Finished hypotheses stay in the beam and compete by
    log p / ((5 + length) / 6) ** alpha (Wu et al., 2016).

    Each step runs the decoder on the whole prefix: no cache of keys and values, which Keras's
    attention does not offer, so time grows with the square of the length.

    Args:
        model: of `build_transformer`.
        max_length: tokens of a translation, its end included.
        beam: hypotheses kept.
        alpha: strength of the length penalty; 0 prefers short translations.
    """

    def __init__(self, model: keras.Model, max_length: int, beam: int = 4, alpha: float = 0.6):
        super().__init__()
        self.encoder = model.get_layer("encoder")
        self.decoder = model.get_layer("decoder")
        self.embedding = model.get_layer("embedding")
        self.max_length = max_length
        self.beam = beam
        self.alpha = alpha

    def call(self, source):
        memory = ops.repeat(self.encoder(source, training=False), self.beam, axis=0)
        repeated = ops.repeat(source, self.beam, axis=0)

        def log_probabilities(tokens, position):
            """(batch, beam, vocabulary) of what follows `position`."""
            prefixes = ops.reshape(tokens, (-1, self.max_length))
            states = self.decoder([prefixes, memory, repeated], training=False)
            last = ops.take(states, position, axis=1)  # only one position is projected
            log_p = ops.log_softmax(self.embedding(last, reverse=True))
            return ops.reshape(log_p, (-1, self.beam, log_p.shape[-1]))

        return search(
            log_probabilities, ops.shape(source)[0], self.max_length, self.beam, self.alpha
        )


def search(log_probabilities, batch, max_length, beam, alpha):
    """Returns the best hypotheses, int32 (batch, max_length).

    Args:
        log_probabilities: (prefixes int32 (batch, beam, max_length), position) -> float32 (batch,
            beam, vocabulary): of the token after `position`. A prefix starts with `BEGIN`.
        batch: sentences.
        max_length, beam, alpha: as in `Translator`.
    """
    tokens = ops.full((batch, beam, max_length), transformer.PADDING, "int32")
    tokens = _put(tokens, 0, ops.full((batch, beam), transformer.BEGIN, "int32"))
    # All start alike: only the first may be continued, or the beam would hold copies.
    scores = ops.tile(ops.convert_to_tensor([[0.0] + [IMPOSSIBLE] * (beam - 1)]), (batch, 1))
    lengths = ops.zeros((batch, beam), "float32")
    finished = ops.zeros((batch, beam), "bool")
    last = ops.full((batch, beam), transformer.BEGIN, "int32")

    def unfinished(position, tokens, scores, lengths, finished, last):
        return ops.logical_and(position < max_length, ops.logical_not(ops.all(finished)))

    def extend(position, tokens, scores, lengths, finished, last):
        # `last` is not written yet where it would stand behind the last place.
        tokens = _put(tokens, position, last)
        log_p = log_probabilities(tokens, position)
        vocabulary = log_p.shape[-1]
        only_padding = ops.where(ops.arange(vocabulary) == transformer.PADDING, 0.0, IMPOSSIBLE)
        log_p = ops.where(ops.expand_dims(finished, -1), only_padding, log_p)
        lengths = lengths + ops.cast(ops.logical_not(finished), "float32")
        candidates = ops.expand_dims(scores, -1) + log_p
        ranks = candidates / ops.expand_dims(_penalty(lengths, alpha), -1)
        _, best = ops.top_k(ops.reshape(ranks, (-1, beam * vocabulary)), beam)
        parents, last = best // vocabulary, best % vocabulary
        flat = ops.reshape(candidates, (-1, beam * vocabulary))
        scores = ops.take_along_axis(flat, best, axis=1)
        tokens = ops.take_along_axis(tokens, ops.expand_dims(parents, -1), axis=1)
        lengths = ops.take_along_axis(lengths, parents, axis=1)
        finished = ops.take_along_axis(finished, parents, axis=1)
        finished = ops.logical_or(finished, last == transformer.END)
        return position + 1, tokens, scores, lengths, finished, last

    position, tokens, scores, lengths, _, last = ops.while_loop(
        unfinished, extend, (0, tokens, scores, lengths, finished, last)
    )
    # Shifted by one place: the begin token makes room for the last token.
    tokens = ops.concatenate([tokens[:, :, 1:], ops.zeros_like(tokens[:, :, :1])], axis=2)
    tokens = _put(tokens, position - 1, last)
    best = ops.argmax(scores / _penalty(lengths, alpha), axis=1)
    best = ops.reshape(ops.cast(best, "int32"), (-1, 1, 1))
    return ops.squeeze(ops.take_along_axis(tokens, best, axis=1), 1)


def _put(tokens, position, values):
    """The tokens with `values` (batch, beam) at a position of all hypotheses."""
    here = ops.arange(tokens.shape[-1]) == position
    return ops.where(here, ops.expand_dims(values, -1), tokens)


def _penalty(lengths, alpha):
    return ((5.0 + lengths) / 6.0) ** alpha
