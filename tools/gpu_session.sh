#!/bin/sh
# Builds, tests and measures the GPU kernels in one call, for a machine that is rented by the minute:
#   tools/gpu_session.sh [FOLDER]      logs and results go to FOLDER (default: build/gpu-session)
# Needs g++, nvcc and a python3 with NumPy (PYTHON names another). Measures PyTorch too where it is
# installed, and tests the ops where TensorFlow sees the GPU. Exit status 0: every step that could run
# passed.
set -u
cd "$(dirname "$0")/.."
out=${1:-build/gpu-session}
python=${PYTHON:-python3}
mkdir -p "$out"
status=0
step() {  # step NAME COMMAND...: runs COMMAND, logs its output, prints the last lines.
  name=$1
  shift
  echo "== $name"
  "$@" >"$out/$name.log" 2>&1 || { status=1; echo "FAILED: $name (see $out/$name.log)"; }
  tail -n 40 "$out/$name.log"
}
# Only the architecture of the device: building takes rented time.
arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
step build make gpu-core ${arch:+CUDA_ARCHS="$arch"}
[ $status = 0 ] || exit 1
library=build/core/lib/libtf_bn_ops_core.so
step test "$python" tools/gpu/test.py --library=$library --no-sanitizer
step bench "$python" tools/gpu/bench.py --library=$library --json="$out/bench.json"
if "$python" tools/gpu/tensorflow_test.py --probe; then
  step tensorflow-build make gpu PYTHON="$python" ${arch:+CUDA_ARCHS="$arch"}
  step tensorflow "$python" tools/gpu/tensorflow_test.py
fi
step sanitizer "$python" tools/gpu/test.py --library=$library --quick
exit $status
