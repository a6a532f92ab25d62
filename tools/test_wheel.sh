#!/bin/sh
# Runs the tests against an installed wheel, in a fresh environment, from outside the source tree:
#   test_wheel.sh PYTHON WHEEL [PYTEST_ARGUMENTS...]
# pip gets TensorFlow and all else that the wheel asks for. The folder is removed at the end; after a
# failure it is kept, and named.
set -eu
cd "$(dirname "$0")/.."
source=$PWD
python=$1
wheel=$(realpath "$2")
shift 2
folder=$(mktemp -d "${TMPDIR:-/tmp}/tf_bn_ops-wheel-XXXXXX")
echo "  VENV    $folder/venv"
"$python" -m venv "$folder/venv"
requirements=
for list in commands dev lint; do requirements="$requirements -r $source/requirements/$list.txt"; done
echo "  PIP     $wheel"
# shellcheck disable=SC2086  # a list of words
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel" $requirements
cp -R "$source/tests" "$folder/tests"
cd "$folder"
echo "  TEST    $folder/tests"
if "$folder/venv/bin/python" -m pytest -c "$source/pyproject.toml" --rootdir="$folder" \
  -o cache_dir="$folder/.cache" tests "$@"; then
  cd / && rm -rf "$folder"
else
  echo "error: tests failed against the installed wheel; it is in $folder" >&2
  exit 1
fi
