"""KerasHub's BERT tells from which topic a paragraph is: its head first, then all by LoRA."""

import re
from collections import Counter

import keras
import keras_hub
import numpy as np
import outcome
import real_data

import tf_scalecom as sc

keras.utils.set_random_seed(0)
topics = "specialnames", "compound", "types"
texts, places = real_data.paragraphs(*topics)
chosen = np.random.default_rng(0).permutation(len(texts))[:271]
texts, places = [texts[index] for index in chosen], [places[index] for index in chosen]
words = Counter(re.findall(r"[a-z]+", " ".join(texts).lower()))
vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
vocabulary += [word for word, _ in words.most_common(1000)]

strategy = sc.MultiWorkerMirroredStrategy()
with strategy.scope():
    tokenizer = keras_hub.models.BertTokenizer(vocabulary, lowercase=True)
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=len(vocabulary),
        num_layers=1,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=64,
        dropout=0.0,
        max_sequence_length=24,
    )
    classifier = keras_hub.models.BertTextClassifier(
        backbone,
        num_classes=len(topics),
        dropout=0.0,
        preprocessor=keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=24),
    )


def fit(rate):
    with strategy.scope():
        classifier.compile(
            optimizer=sc.ScaleComOptimizer(keras.optimizers.AdamW(rate), compression_ratio=1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    return classifier.fit(texts, places, batch_size=32, epochs=2, verbose=0).history


whole = fit(2e-3)
with strategy.scope():
    backbone.enable_lora(rank=4)
by_lora = fit(1e-3)
history = {
    f"{phase} {name}": values
    for phase, result in {"whole": whole, "lora": by_lora}.items()
    for name, values in result.items()
}
outcome.tell(history, classifier.weights)
