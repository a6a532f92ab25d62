#!/bin/sh
# Prints a list file without comments, for Make and for Bazel's repository rule.
#   list_flags.sh flags FILE   -> the words of FILE
#   list_flags.sh isa FILE     -> of each line `name arch flags...` that fits this machine (arch is
#                                 that of uname -m, or `any`): name|flag|flag...
set -eu
[ -e "$2" ] || exit 0
case $1 in
  flags) sed 's/#.*//' "$2" ;;
  isa)
    awk -v arch="$(uname -m)" '
      { sub(/#.*/, "") }
      NF && ($2 == arch || $2 == "any") {
        line = $1
        for (i = 3; i <= NF; i++) line = line "|" $i
        print line
      }' "$2"
    ;;
esac
