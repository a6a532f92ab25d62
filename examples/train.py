"""A residual network of Keras, which knows nothing of this library.

python -m tf_bn_ops run --report examples/train.py
"""

import keras
import numpy as np

inputs = keras.Input((32, 32, 3))
x = keras.layers.Conv2D(32, 3, padding="same", activation="relu")(inputs)
y = keras.layers.Conv2D(32, 3, padding="same")(x)
y = keras.layers.ReLU()(keras.layers.BatchNormalization(name="first")(y))
y = keras.layers.Conv2D(32, 3, padding="same")(y)
y = keras.layers.Add()([x, keras.layers.BatchNormalization(name="second")(y)])
x = keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(y))
model = keras.Model(inputs, keras.layers.Dense(10)(x))

model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
rng = np.random.default_rng(0)
images, labels = rng.normal(size=(256, 32, 32, 3)), rng.integers(10, size=256)
model.fit(images.astype("float32"), labels, batch_size=32, verbose=0)
