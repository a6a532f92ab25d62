#!/usr/bin/env bash
# run_pytest.sh PYTHON TEST_FILE: runs the tests of one file on what Bazel built.
#
# In a copy of the sources, since tests find their files by the real paths of links, with the
# libraries, headers and programs where the package has them.
set -euo pipefail
python=$1
test_file=$2

tree=$TEST_TMPDIR/tree
mkdir "$tree"
# Not what Bazel puts beside the sources: links to TensorFlow's large libraries.
find . -mindepth 1 -maxdepth 1 ! -name external ! -name '_solib_*' ! -name '*.so' ! -name bin \
  -exec cp -RL {} "$tree" ';'
chmod -R u+w "$tree"
package=$tree/tf_bn_ops
mkdir "$package/lib" "$package/include"
mv "$tree/build_info.json" "$package/lib"
cp -L ./*.so "$package/lib"
cp -RL bin "$package"
cp -R "$tree/cc/client/include/." "$package/include"
for header in "$tree"/cc/c_api/tf_bn_ops_*.h; do
  "$python" "$tree/tools/c_header.py" "${header#"$tree"/}" > "$package/include/tf_bn_ops/${header##*/}"
done

cd "$tree"
# Bazel's variables are not for a make or bazel that a test starts.
unset RUNFILES_DIR RUNFILES_MANIFEST_FILE JAVA_RUNFILES PYTHON_RUNFILES
export PYTHONDONTWRITEBYTECODE=1
PYTHONPATH=$tree exec "$python" -m pytest -q -p no:cacheprovider "$test_file"
