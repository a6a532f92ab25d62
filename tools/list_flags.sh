#!/bin/sh
# Prints a list file without comments, for Make and for Bazel's repository rule.
#   list_flags.sh flags FILE   -> the words of FILE
#   list_flags.sh native FILE  -> as isa, without the instruction sets that this processor lacks
#   list_flags.sh isa FILE     -> of each line `name machine features flags...` of isa_builds.txt that
#                                 fits this machine, or the one that $ARCH names: name|condition|flag|flag..., the condition in C++,
#                                 such as HAS(avx2)&&HAS(fma) (HAS is defined in cc/cpu)
set -eu
[ -e "$2" ] || exit 0
case $1 in
  flags) sed 's/#.*//' "$2" ;;
  isa | native)
    # As Linux names them, but for avx512_bf16, which GCC writes without the underscore.
    has=
    if [ "$1" = native ] && [ "${ARCH:-$(uname -m)}" = "$(uname -m)" ]; then
      has=$(sed -n '/^\(flags\|Features\)[[:space:]]*:/{s/.*://;s/_//g;p;q}' "${CPUINFO:-/proc/cpuinfo}")
    fi
    awk -v arch="${ARCH:-$(uname -m)}" -v has=" $has " '
      { sub(/#.*/, "") }
      function lacks(features, names, i) {
        split(features, names, ",")
        for (i in names) if (index(has, " " names[i] " ") == 0) return 1
        return 0
      }
      NF && ($2 == arch || $2 == "any") {
        if (has !~ /^ *$/ && $3 != "-" && lacks($3)) next
        condition = "true"
        if ($3 != "-") {
          condition = "HAS(" $3 ")"
          gsub(/,/, ")\\&\\&HAS(", condition)
        }
        line = $1 "|" condition
        for (i = 4; i <= NF; i++) line = line "|" $i
        print line
      }' "$2"
    ;;
esac
