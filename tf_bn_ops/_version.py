"""The version of the package, and of what it supports: the one place to add a TensorFlow.

Make, pip, the matrix and the switch read it, without an import of the package; tests hold pages,
classifiers, requirements and workflows to it. No syntax is newer than Python 3.6 (tools/tf_env.py).
"""

__version__ = "0.1.0"

# TensorFlow -> the oldest and newest Python of its wheels that tf_bn_ops supports too (3.10 on).
# https://www.tensorflow.org/install/source#tested_build_configurations
TENSORFLOWS = {
    "2.16": ((3, 10), (3, 12)),
    "2.17": ((3, 10), (3, 12)),
    "2.18": ((3, 10), (3, 12)),
    "2.19": ((3, 10), (3, 12)),
    "2.20": ((3, 10), (3, 13)),
    "2.21": ((3, 10), (3, 13)),
    "2.22": ((3, 10), (3, 14)),
}
# Versions of which there is a candidate only: pip takes it by its full name alone, and tf_keras
# has none yet, so that its newest release is tried.
CANDIDATES = {"2.22": "2.22.0rc0"}
