"""The bidirectional LSTM acoustic model of hybrid speech recognition."""

import keras

layers = keras.layers


def build_blstm(
    frames: int,
    features: int,
    num_classes: int,
    units: int = 512,
    num_layers: int = 4,
    bottleneck: int = 256,
    per_frame: bool = True,
) -> keras.Model:
    """Bidirectional LSTM layers, a linear bottleneck, logits of each frame or of the utterance.

    Takes float32 (batch, frames, features); returns logits (batch, frames, num_classes), or
    (batch, num_classes) from the mean over the frames. The paper's network for SWB300 (frames 21,
    features 260, 32,000 classes, and the defaults) has 30,539,264 weights.

    Args:
        frames: of an utterance, or of a window of one.
        features: of a frame.
        num_classes: outputs.
        units: of each direction of each layer.
        num_layers: of LSTM.
        bottleneck: width of the layer before the outputs, without an activation.
        per_frame: whether each frame has a label, or all together one.
    """
    x = inputs = layers.Input((frames, features))
    for _ in range(num_layers):
        x = layers.Bidirectional(layers.LSTM(units, return_sequences=True))(x)
    if not per_frame:
        x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dense(bottleneck, name="bottleneck")(x)
    return keras.Model(inputs, layers.Dense(num_classes, name="logits")(x), name="blstm")
