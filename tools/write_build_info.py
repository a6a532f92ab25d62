"""Writes build_info.json, what the loader and `doctor` know about a built library.

python tools/write_build_info.py OUTPUT key=value...; `isa_builds` is a list of names separated
by blanks, `cxxflags` is searched for the ABI switch. With GPU kernels `cuda_version` and
`cuda_archs` are given too; later devices use the PTX of the last architecture. `xla` is yes or no.
`builds_with` is the oldest and the newest TensorFlow that these sources build with.
"""

import json
import platform
import re
import sys

import tf_env
import tool_flags

NEEDED = (
    *("version", "tensorflow_version", "tensorflow_distribution", "compiler", "cxxflags"),
    *("isa_builds", "xla"),
)


def main(arguments: list[str]) -> None:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("output")
    parser.add_argument("given", nargs="+", metavar="key=value")
    flags = parser.parse_args(arguments)
    given = dict(word.partition("=")[::2] for word in flags.given)
    if missing := sorted(set(NEEDED) - set(given)):
        parser.error(f"no value is given for {', '.join(missing)}")
    abi = re.search(r"_GLIBCXX_USE_CXX11_ABI=(\d)", given["cxxflags"])
    archs = given.get("cuda_archs", "").split()
    info = {
        "version": given["version"],
        "tensorflow_version": given["tensorflow_version"],
        "tensorflow_distribution": given["tensorflow_distribution"],
        "builds_with": tf_env.supported_versions().split(" to "),
        "python_version": platform.python_version(),
        "machine": platform.machine(),
        "compiler": given["compiler"],
        "cxxflags": " ".join(given["cxxflags"].split()),
        "cxx11_abi": int(abi.group(1)) if abi else None,
        "isa_builds": given["isa_builds"].split(),
        "xla": given["xla"] == "yes",
        "cuda": {"version": given["cuda_version"], "archs": archs, "ptx": archs[-1]}
        if archs
        else None,
    }
    with open(flags.output, "w", encoding="utf-8") as file:
        json.dump(info, file, indent=2)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1:])
