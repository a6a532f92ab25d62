"""The fuzz targets on their seed corpora and on variations of them, without a fuzzer.

Promised: what the targets promise (their first lines), under AddressSanitizer and
UndefinedBehaviorSanitizer, for each seed and 500 variations of it. `make fuzz` looks further,
guided by coverage; `make sanitize` replays the targets of the C ABI, which need the core.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest
from build_helpers import make, run

VARIATIONS = 500
# Targets that need no more than these sources.
PARSERS = {"attributes": ["cc/client/attribute_string.cc"]}

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def test_every_target_has_seeds(repo_root):
    targets = {path.stem for path in (repo_root / "tests" / "fuzz").glob("*.cc")} - {"replay"}
    corpora = {path.name for path in (repo_root / "tests" / "fuzz" / "corpus").iterdir()}
    assert targets == corpora
    assert targets > set(PARSERS)


def replay(repo_root: pathlib.Path, target: str, folder: pathlib.Path, *defines: str):
    program = folder / target
    files = [f"tests/fuzz/{target}.cc", "tests/fuzz/replay.cc", *PARSERS[target]]
    flags = ["-std=c++17", "-I.", "-g", "-O1", "-fsanitize=address,undefined", *defines]
    compiled = run(["g++", *flags, "-fno-sanitize-recover", *files, "-o", program], repo_root)
    assert compiled.returncode == 0, compiled.stderr
    seeds = sorted((repo_root / "tests" / "fuzz" / "corpus" / target).iterdir())
    return len(seeds), run([program, str(VARIATIONS), *seeds], repo_root)


@pytest.mark.parametrize("target", PARSERS)
def test_the_parsers_keep_their_promises(repo_root, tmp_path, target):
    count, result = replay(repo_root, target, tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{count} files, {VARIATIONS} variations of each\n"


def test_a_broken_promise_is_noticed(repo_root, tmp_path):
    """The same run with the opposite of what holds."""
    wrong = "-DTFBN_FUZZ_CHECK(condition)=if(condition)__builtin_trap()"
    result = replay(repo_root, "attributes", tmp_path, wrong)[1]
    assert result.returncode != 0


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
