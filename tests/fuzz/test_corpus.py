"""The fuzz target on its seed corpus and on variations of it, without a fuzzer.

Promised: any call of the C ABI is computed or refused in one sentence, without an access outside
its arrays, and has the same bits with one thread, in place and with either mask; for each seed of
the corpus and 100 variations of it. `make sanitize` replays it on a core that is watched; `make
fuzz` looks further, guided by coverage.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest
from build_helpers import make, run

from tf_bn_ops import _loader

VARIATIONS = 100
TARGET = "c_abi"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def program(repo_root, tmp_path_factory) -> pathlib.Path:
    built, core = (
        tmp_path_factory.mktemp("fuzz") / TARGET,
        pathlib.Path(_loader.core_library_path()),
    )
    sources = [f"tests/fuzz/{TARGET}.cc", "tests/fuzz/replay.cc", "cc/c_api/read_call.cc"]
    files = [*sources, str(core), f"-Wl,-rpath,{core.parent}"]
    flags = ["-std=c++17", "-I.", "-g", "-O1", "-fsanitize=address,undefined"]
    compiled = run(["g++", *flags, "-fno-sanitize-recover", *files, "-o", str(built)], repo_root)
    assert compiled.returncode == 0, compiled.stderr
    return built


def test_a_target_keeps_its_promises(repo_root, program):
    seeds = sorted((repo_root / "tests" / "fuzz" / "corpus" / TARGET).iterdir())
    result = run([program, str(VARIATIONS), *seeds], repo_root)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{len(seeds)} files, {VARIATIONS} variations of each\n"
    # The opposite of what holds is noticed.
    assert run([program, "0", *seeds], repo_root, TFBN_FUZZ_OPPOSITE="1").returncode != 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["CLANG=no-such-clang++"],
            "error: no no-such-clang++ found, whose libFuzzer make fuzz needs: install it",
        ),
        # A compiler without the engine.
        (["CLANG=g++"], "error: g++ has no libFuzzer, which make fuzz needs: install its runtime"),
    ],
)
def test_without_a_fuzzer_there_is_one_sentence(repo_root, arguments, sentence):
    result = make(repo_root, "fuzz", *arguments)
    assert result.returncode != 0
    assert result.stderr.splitlines()[0].startswith(sentence)


@pytest.mark.large
def test_a_short_fuzz_run_finds_nothing(repo_root):
    if not shutil.which("clang++"):
        pytest.skip("needs clang")
    result = make(repo_root, "fuzz", "SECONDS=15")
    assert result.returncode == 0, result.stderr
    assert subprocess.run(["git", "diff", "--quiet", "tests/fuzz"], cwd=repo_root).returncode == 0
