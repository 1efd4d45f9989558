"""Words and pieces of words of both languages as numbers: byte-pair encoding by SentencePiece."""

import functools
import pathlib
from collections.abc import Iterable, Sequence

import sentencepiece
import transformer

from tf_scalecom.base.whole_files import write_whole


class Subwords:
    """A vocabulary that was learned from text.

    Args:
        model_file: of SentencePiece.
    """

    def __init__(self, model_file: pathlib.Path):
        self._pieces = sentencepiece.SentencePieceProcessor(model_file=str(model_file))

    @property
    def size(self) -> int:
        """Number of tokens, the four special ones included."""
        return self._pieces.vocab_size()

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Tokens of each sentence, without begin and end."""
        return self._pieces.encode(list(sentences))

    def decode(self, tokens: Iterable[Sequence[int]]) -> list[str]:
        """The sentences whose tokens end at `END`, or at their end."""
        return [self._pieces.decode(list(_until_end(row))) for row in tokens]


def _until_end(row):
    for token in row:
        if token in (transformer.END, transformer.PADDING):
            return
        yield int(token)


def learn(sentences: Iterable[str], vocabulary_size: int, model_file: pathlib.Path) -> Subwords:
    """Learns a vocabulary, unless the file is there already.

    The same sentences in the same order give the same vocabulary, so workers without a common disk
    agree. The file is written whole or not at all.

    Args:
        sentences: of both languages.
        vocabulary_size: tokens wanted, the special ones included; fewer where the text has no more.
        model_file: where the vocabulary is kept.
    """
    if not model_file.exists():
        model_file.parent.mkdir(parents=True, exist_ok=True)
        train = functools.partial(
            sentencepiece.SentencePieceTrainer.train,
            sentence_iterator=iter(sentences),
            model_type="bpe",
            vocab_size=vocabulary_size,
            hard_vocab_limit=False,
            num_threads=1,
            pad_id=transformer.PADDING,
            bos_id=transformer.BEGIN,
            eos_id=transformer.END,
            unk_id=transformer.UNKNOWN,
            minloglevel=1,
        )
        write_whole(model_file, lambda file: train(model_writer=file))
    return Subwords(model_file)
