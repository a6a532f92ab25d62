#!/bin/sh
# Makes the build's own environment: make_venv.sh VENV_DIR REQUIREMENTS_FILE...
# Picks the first python3 that TensorFlow has wheels for: 3.10 to 3.$VENV_NEWEST. VENV_PYTHON names another.
set -eu
venv=$1
shift

newest=${VENV_NEWEST:-13}
fits="import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, $newest))"
python=
for candidate in ${VENV_PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
  if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c "$fits" 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "error: no Python 3.10 to 3.$newest found (${VENV_PYTHON:-python3}): install one (Debian/Ubuntu: apt install python3 python3-venv) or name one with make VENV_PYTHON=/path/to/python." >&2
  exit 1
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  echo "error: $python has no venv module: install it (Debian/Ubuntu: apt install python3-venv), or use an environment that has TensorFlow with make PYTHON=/path/to/python." >&2
  exit 1
fi

# An environment of another Python, or one whose base is gone, is made anew.
if [ -e "$venv" ] && ! "$venv/bin/python" -c "$fits" 2>/dev/null; then
  rm -rf "$venv"
fi
if [ ! -x "$venv/bin/python" ]; then
  echo "  VENV    $venv ($("$python" --version 2>&1))"
  "$python" -m venv "$venv"
fi

case $* in *tensorflow*) note=" (TensorFlow is large: this takes a while the first time)" ;; *) note= ;; esac
echo "  PIP     $*$note"
# What asks for the distribution `tensorflow` would replace tensorflow-cpu: it comes without.
alone=
with=
for file in "$@"; do
  case $file in
    *without_dependencies*) alone="$alone -r $file" ;;
    *) with="$with -r $file" ;;
  esac
done
install() {
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}
if ! { install $with && { [ -z "$alone" ] || install --no-deps $alone; }; }; then
  echo "error: pip could not install the requirements into $venv (its message is above): check the network or pip's index settings and run make again." >&2
  exit 1
fi
