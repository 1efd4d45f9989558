"""A vision Transformer: augmentation, patches and encoder, all made in the scope."""

import keras
import outcome
import real_data
from keras import layers, ops

import tf_scalecom as sc

PATCH, PATCHES, WIDTH, HEADS = 7, 16, 32, 4
BATCH, EPOCHS, STEPS = 64, 2, 17


class Patches(layers.Layer):
    def call(self, images):
        patches = ops.image.extract_patches(images, PATCH)
        return ops.reshape(patches, (ops.shape(images)[0], PATCHES, PATCH * PATCH))


class PatchEncoder(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.projection = layers.Dense(WIDTH)
        self.position = layers.Embedding(PATCHES, WIDTH)

    def call(self, patches):
        return self.projection(patches) + self.position(ops.arange(PATCHES))


def vit(augmentation):
    inputs = keras.Input((28, 28, 1))
    x = PatchEncoder()(Patches()(augmentation(inputs)))
    y = layers.LayerNormalization(epsilon=1e-6)(x)
    x = layers.Add()([layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y), x])
    y = layers.LayerNormalization(epsilon=1e-6)(x)
    y = layers.Dense(WIDTH, activation="gelu")(layers.Dense(2 * WIDTH, activation="gelu")(y))
    x = layers.Add()([x, y])
    x = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x))
    return keras.Model(inputs, layers.Dense(10)(x))


keras.utils.set_random_seed(0)
images, labels = real_data.clothing(1203)

strategy = sc.MultiWorkerMirroredStrategy()
with strategy.scope():
    augmentation = keras.Sequential(
        [
            layers.Normalization(),
            # Ranges of one value: which replica draws does not matter then.
            layers.RandomRotation(factor=(0.02, 0.02)),
            layers.RandomZoom(height_factor=(0.1, 0.1), width_factor=(0.1, 0.1)),
        ]
    )
    augmentation.layers[0].adapt(images)
    model = vit(augmentation)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, EPOCHS * STEPS, warmup_target=2e-3, warmup_steps=STEPS
    )
    model.compile(
        optimizer=sc.ScaleComOptimizer(
            keras.optimizers.AdamW(rate, weight_decay=1e-4), compression_ratio=1
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[
            keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
            keras.metrics.SparseTopKCategoricalAccuracy(3, name="top_3"),
        ],
    )

history = model.fit(
    images, labels, batch_size=BATCH, epochs=EPOCHS, validation_split=0.1, verbose=0
)
outcome.tell(history.history, model.weights)
