"""Several processes on TensorFlow's own distributed runtime over loopback, and two CPU devices."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import forked
import numpy as np
import pytest
from build_helpers import environment

from tf_bn_ops import _loader

ROOT = pathlib.Path(_loader.__file__).resolve().parent.parent

# One worker of two: trains the same small network by several kinds of batch normalization, each
# worker on data of its own, and prints the losses of both.
WORKER = """
import json, os
import numpy as np, tensorflow as tf, keras, tf_bn_ops

strategy = tf.distribute.MultiWorkerMirroredStrategy()
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
rng = np.random.default_rng(index)
images = tf.constant(rng.normal(size=(8, 6, 6, 3)).astype(np.float32))
labels = tf.constant(rng.integers(0, 4, 8))

def train(make_normalize, steps=4):
    start = np.random.default_rng(9)
    with strategy.scope():
        create = lambda *shape: tf.Variable(
            start.normal(size=shape).astype(np.float32) / 4,
            aggregation=tf.VariableAggregation.MEAN)
        kernel, dense = create(3, 3, 3, 8), create(8, 4)
        normalize, weights = make_normalize(create)

    @tf.function
    def step():
        def replica():
            with tf.GradientTape() as tape:
                x = normalize(tf.nn.conv2d(images, kernel, 1, "SAME"))
                logits = tf.reduce_mean(tf.nn.relu(x), [1, 2]) @ dense
                loss = tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            variables = [kernel, dense, *weights]
            for variable, gradient in zip(variables, tape.gradient(loss, variables)):
                variable.assign_sub(0.5 * gradient)      # Averages over the workers.
            return tf.distribute.get_replica_context().all_reduce("mean", loss)
        return strategy.run(replica)

    return [float(step()) for _ in range(steps)]

def function(normalize):
    def make(create):
        scale, offset = create(8), create(8)
        return lambda x: normalize(x, scale, offset, epsilon=1e-3)[0], [scale, offset]
    return make

def layer(kind):
    def make(create):
        normalize = kind(epsilon=1e-3)
        normalize.build((None, 6, 6, 8))
        return lambda x: normalize(x, training=True), [normalize.gamma.value, normalize.beta.value]
    return make

losses = {
    "builtin": train(function(tf.compat.v1.nn.fused_batch_norm)),
    "fused_batch_norm": train(function(tf_bn_ops.fused_batch_norm)),
    "keras": train(layer(keras.layers.BatchNormalization)),
    "layer": train(layer(tf_bn_ops.keras.BatchNormalization)),
}
assert tf_bn_ops.enable(keras=False, fuse=False).kernels
losses["override"] = train(function(tf.compat.v1.nn.fused_batch_norm))
print(json.dumps(losses))
"""

# One process with two CPU devices: fits the same model with Keras' layer and with ours. Replicas
# normalize by their own statistics, and keep moving statistics of their own.
MIRRORED = """
import json
import keras, numpy as np, tensorflow as tf
import tf_bn_ops

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
rng = np.random.default_rng(0)
x, y = rng.normal(1, 2, (8, 6, 6, 3)).astype("float32"), rng.normal(size=(8, 1)).astype("float32")
results = []
for kind in (keras.layers.BatchNormalization, tf_bn_ops.keras.BatchNormalization):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layer = kind(momentum=0.8)
        model = keras.Sequential(
            [keras.Input((6, 6, 3)), keras.layers.Conv2D(4, 3), layer, keras.layers.ReLU(),
             keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    history = model.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0).history
    statistics = [variable.value.values for variable in layer.non_trainable_weights]
    results.append({
        "loss": history["loss"],
        "of replicas": [[v.numpy().tolist() for v in values] for values in statistics],
        "aggregation": [str(v.value.aggregation) for v in layer.non_trainable_weights],
    })
print(json.dumps(results))
"""

# A server that others place ops on; it loads the library by the one documented line.
SERVER = """
import sys
import tensorflow as tf, tf_bn_ops

tf_bn_ops.load()
server = tf.distribute.Server({"worker": [sys.argv[1]]}, job_name="worker", task_index=0)
print("ready", flush=True)
sys.stdin.read()
"""

CLIENT = """
import sys
import numpy as np, tensorflow as tf, tf_bn_ops

tf_bn_ops.load()
tf.config.experimental_connect_to_host(sys.argv[1])
rng = np.random.default_rng(0)
dy, x = (tf.constant(rng.normal(size=(4, 5, 6, 3)).astype(np.float32)) for _ in range(2))
one = tf.ones([3])
want = tf_bn_ops.fused_batch_norm_grad(dy, x, one, one, one)
with tf.device("/job:worker/task:0/device:CPU:0"):
    eager = tf_bn_ops.fused_batch_norm_grad(dy, x, one, one, one)
    in_function = tf.function(tf_bn_ops.fused_batch_norm_grad)(dy, x, one, one, one)
for got in (eager, in_function):
    assert "/job:worker" in got.x_backprop.device, got.x_backprop.device
    for a, b in zip(got[:3], want[:3]):
        assert a.numpy().tobytes() == b.numpy().tobytes()
print("equal")
"""


@pytest.fixture(scope="module")
def losses() -> list[dict[str, list[float]]]:
    """The losses that each of two workers saw, by kind of batch normalization."""
    workers = forked.cluster(WORKER, workers=2)
    for worker in workers:
        assert worker.returncode == 0, worker.stderr[-3000:]
    return [json.loads(worker.stdout.splitlines()[-1]) for worker in workers]


def test_both_workers_see_the_same_losses(losses):
    assert losses[0] == losses[1]
    for curve in losses[0].values():
        assert curve[-1] < curve[0]


@pytest.mark.parametrize(
    ("kind", "reference"),
    [("fused_batch_norm", "builtin"), ("override", "builtin"), ("layer", "keras")],
)
def test_two_workers_train_as_on_tensorflows_gradient(losses, kind, reference):
    # Four steps, each with some hundred roundings in float32.
    np.testing.assert_allclose(losses[0][kind], losses[0][reference], rtol=1e-5)


@pytest.mark.long
def test_op_on_the_device_of_a_remote_worker():
    (address,) = forked.free_addresses(1)
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, address],
        env=environment(PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL="3"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        client = forked.run(CLIENT, address, timeout=120)
        assert (client.returncode, client.stdout) == (0, "equal\n"), client.stderr[-3000:]
    finally:
        server.kill()
        server.communicate()


@pytest.mark.long
def test_replicas_keep_moving_statistics_as_with_keras_layer():
    process = forked.run(MIRRORED, timeout=300)
    assert process.returncode == 0, process.stderr[-3000:]
    keras, ours = json.loads(process.stdout.splitlines()[-1])
    assert ours["aggregation"] == keras["aggregation"]
    np.testing.assert_allclose(ours["loss"], keras["loss"], rtol=1e-4)
    # Means of about 0.1: absolute.
    np.testing.assert_allclose(ours["of replicas"], keras["of replicas"], atol=1e-4)
    first, second = np.moveaxis(ours["of replicas"], 1, 0)
    assert not np.allclose(first, second, atol=1e-2)
