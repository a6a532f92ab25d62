"""`python -m tf_bn_ops run`: the program as Python runs it, and the switch in all its processes.

Promised: what was asked for and is not possible ends the program with one sentence and status 2;
`%load_ext tf_bn_ops` does the same for a notebook's process.

Where TensorFlow does not matter the programs do without: each is run by Python, too, and compared.
"""

from __future__ import annotations

import pathlib
import py_compile
import re
import subprocess
import sys
import zipapp

import pytest
from build_helpers import environment, run
from test_switch import KERAS_ON_JAX, ROOT, STATE, WORDS, assert_on, editable
from test_switch import python as hooked  # noqa: F401

from tf_bn_ops import _loader

COMMAND = ("-m", "tf_bn_ops", "run")
LINE = re.compile(
    rf"tf_bn_ops {re.escape(_loader.__version__)} on TensorFlow \S+ \(\w+\): "
    r"(\d+ kernels, Keras layers, fusion)\n"
)


def start(
    folder: pathlib.Path,
    *words: object,
    python: object = sys.executable,
    stdin: str = "",
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Python in a folder, with this package on its path."""
    changes = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **variables}
    return subprocess.run(
        [str(python), *map(str, words)], input=stdin, cwd=folder, env=environment(**changes),
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def both(folder: pathlib.Path, *words: str, **how: str) -> list[subprocess.CompletedProcess[str]]:
    """What becomes of a program that Python runs, and this command."""
    return [start(folder, *words, **how), start(folder, *COMMAND, *words, **how)]


# ---- The program as Python runs it ---------------------------------------------------------------

PROBE = """
import json, sys
assert sys.modules["__main__"].__dict__ is globals()
def function(argument: int): pass
print(json.dumps([
    sys.argv, sys.path, __name__, globals().get("__file__"), __package__, __doc__,
    getattr(__spec__, "name", None), type(__loader__).__name__, sorted(globals()),
    function.__annotations__["argument"] is int, function.__module__,
]))
"""
HOW = {
    "a script": ["script.py", "a", "--only=b", "-m", "--", "--report"],
    "another path": ["./folder/../script.py"],
    "a link": ["link.py"],
    "a compiled script": ["script.pyc", "a"],
    "a folder": ["folder", "--help"],
    "an archive": ["archive.pyz"],
    "a module": ["-m", "script", "-m", "a"],
    "in one word": ["-mscript"],
    "a package": ["-m", "package", "a"],
    "a package's module": ["-m", "package.inner"],
    "stdin": ["-", "a"],
    "code": ["-c", PROBE, "a", "-m"],
    "code in one word": [f"-c{PROBE}"],
}


@pytest.fixture
def programs(tmp_path: pathlib.Path) -> pathlib.Path:
    for name in ("folder/__main__.py", "package/__main__.py", "package/inner.py", "script.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(PROBE)
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "link.py").symlink_to("folder/__main__.py")
    zipapp.create_archive(tmp_path / "folder", tmp_path / "archive.pyz")
    py_compile.compile(str(tmp_path / "script.py"), str(tmp_path / "script.pyc"))
    return tmp_path


@pytest.mark.parametrize("words", HOW.values(), ids=HOW)
def test_a_program_finds_what_python_gives_it(programs, words):
    """Promise: Below `run` a program finds what Python gives it."""
    want, got = both(programs, *words, stdin=PROBE)
    assert want.returncode == 0, want.stderr
    assert (got.returncode, got.stdout, got.stderr) == (0, want.stdout, "")


ENDS = {
    "a status": "sys.exit(3)",
    "a text": "sys.exit('a text')",
    "an exception": "def f(): 1 / 0\ntry: f()\nfinally: {}['key']",
    "a wrong line": "x = = 1",
    "an exception on import": "import json.nowhere",
    "a hook of its own": "sys.excepthook = lambda *error: print('mine', error[1])\n1 / 0",
    "an interrupt": "import atexit; atexit.register(print, 'end'); raise KeyboardInterrupt",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "no end": "import os; print('x', flush=True); os._exit(5)",
    "an output that has gone": "import os; os.close(1); print('x')",
    "a thread": "import threading; threading.Thread(target=lambda: print(1 / 0)).start()",
}


@pytest.mark.parametrize(
    ("end", "words"),
    [(end, ["script.py"]) for end in ENDS]
    + [(end, ["-m", "script"]) for end in ("an exception", "a wrong line", "an interrupt")],
)
def test_a_program_ends_as_with_python(tmp_path, end, words):
    """Status, signal, output and traceback.

    Promise: Below `run` a program's exit status, signals and tracebacks are its own.
    """
    (tmp_path / "script.py").write_text("import sys\n" + ENDS[end])
    want, got = both(tmp_path, *words)
    texts = [re.sub("0x[0-9a-f]+|Thread-[0-9]+", "", end.stderr) for end in (want, got)]
    assert (got.returncode, got.stdout, texts[1]) == (want.returncode, want.stdout, texts[0])


def test_no_stdin_is_an_empty_one(tmp_path):
    command = f"{sys.executable} -m tf_bn_ops run - <&-"
    told = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")


def test_what_cannot_be_had_is_one_sentence_and_status_2(tmp_path):
    """Before the program starts."""
    (tmp_path / "script.py").write_text("print('started')")
    for words, variables, sentence in (
        ([], {}, "name a SCRIPT, or -m MODULE"),
        (["-m"], {}, "-m needs the name of a MODULE"),
        (["-c"], {}, "-c needs CODE"),
        (["nowhere.py"], {}, f"cannot open {tmp_path}/nowhere.py: No such file or directory"),
        (["-x", "script.py"], {}, "there is no flag -x"),
        (["--onli=fuse", "script.py"], {}, "unrecognized arguments: --onli=fuse"),
        (["--only=fuse,kernals", "script.py"], {}, "--only=fuse,kernals has the word 'kernals'"),
        (["--only", "0", "script.py"], {}, "--only names nothing"),
        ([f"--report={tmp_path}", "script.py"], {}, f"cannot write {tmp_path}: it is a folder"),
        (["script.py"], {"TF_BN_OPS_LIBRARY": "/nowhere"}, "/nowhere does not exist"),
    ):
        told = start(tmp_path, *COMMAND, *words, **variables)
        assert (told.returncode, told.stdout) == (2, ""), words
        assert told.stderr.startswith(f"tf_bn_ops run: {sentence}"), told.stderr
        assert told.stderr.count("\n") == 1
    help_text = start(tmp_path, *COMMAND, "--help")
    assert help_text.returncode == 0 and "usage: python -m tf_bn_ops run" in help_text.stdout


def test_the_children_have_the_sitecustomize_of_the_user(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    (tmp_path / "script.py").write_text(
        "import os, subprocess, sys\n"
        "child = 'import sys, sitecustomize; print(*sys.path, \"tf_bn_ops\" in sys.modules)'\n"
        "subprocess.run([sys.executable, '-c', child], check=True)"
    )
    want, got = both(tmp_path, "script.py", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert got.stdout == want.stdout.replace("False", "True") != want.stdout


# ---- The switch in all its processes -------------------------------------------------------------

FAMILY = (
    STATE.partition("if __name__")[0]
    + """
class OfMain:
    def __call__(self):
        return state()


def of_grandchild(method):
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.apply(OfMain())


import concurrent.futures, multiprocessing, os, subprocess, sys

if __name__ == "__main__":
    for method in sys.argv[1:]:
        print(method, flush=True)
        if method == "prefork":
            children = [os.fork() for _ in range(1)]
            if 0 in children:
                print(state(), flush=True)
                os._exit(0)
            assert [os.waitpid(pid, 0)[1] for pid in children] == [0]
        elif method == "subprocess":
            source = open(__file__).read().partition("if __name__")[0] + "print(state())"
            subprocess.run([sys.executable, "-c", source], check=True)
        elif method == "self":
            print(state(), flush=True)
        else:
            context = multiprocessing.get_context(method)
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
                print(pool.submit(of_grandchild, method).result(), flush=True)
"""
)
METHODS = ["prefork", "spawn", "forkserver", "subprocess", "self"]


def assert_all_on(told: subprocess.CompletedProcess[str], words: list[str] = WORDS) -> None:
    assert told.returncode == 0, told.stdout + told.stderr[-3000:]
    lines = told.stdout.splitlines()
    assert lines[::2] == METHODS[-len(lines) // 2 :]
    for line in lines[1::2]:
        assert_on(line, words)


def test_everything_is_on_and_one_line_says_so(tmp_path, repo_root):
    """In the source tree, and docs/dropin.md says the same."""
    (tmp_path / "script.py").write_text(FAMILY)
    told = start(repo_root, *COMMAND, tmp_path / "script.py", "self", PYTHONPATH="")
    assert_all_on(told)
    (line,) = LINE.findall(told.stderr)
    assert line in (repo_root / "docs" / "dropin.md").read_text("utf-8")


@pytest.mark.long
@pytest.mark.parametrize("flags", [(), ("-I",)], ids=["as it is", "-I"])
def test_every_process_has_it_without_a_start_up_file(tmp_path, flags):
    """Promise: Processes that a program starts have the switch too."""
    (tmp_path / "script.py").write_text(FAMILY)
    how = {"python": editable(tmp_path / "venv"), "PYTHONPATH": ""}
    told = start(tmp_path, *flags, *COMMAND, "script.py", *METHODS, **how)
    assert_all_on(told)


@pytest.mark.long
def test_every_process_has_it_with_one(hooked, tmp_path):  # noqa: F811
    (tmp_path / "script.py").write_text(FAMILY)
    how = {"python": hooked, "PYTHONPATH": "", "TF_BN_OPS": "0"}
    words = ["--only=kernels,keras", "script.py", *METHODS[-2:]]
    told = start(tmp_path, *COMMAND, *words, **how)
    assert_all_on(told, ["kernels", "keras"])


LOGGING = """
import logging.config, sys
logging.config.dictConfig({
    "version": 1,
    "handlers": {"out": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}},
    "root": {"level": "INFO", "handlers": ["out"]},
})
import keras
"""


@pytest.mark.long
def test_the_line_is_logged_where_the_program_configures_logging(tmp_path):
    (tmp_path / "script.py").write_text(LOGGING)
    told = start(tmp_path, *COMMAND, "script.py")
    assert LINE.search(told.stdout) and LINE.search(told.stderr)


def test_what_turns_out_to_be_impossible_ends_the_program(tmp_path):
    """Here by Keras' backend, which the program chooses; also where it can do without Keras."""
    (tmp_path / "keras.py").write_text(KERAS_ON_JAX)
    (tmp_path / "script.py").write_text("try: import keras\nexcept Exception: print('went on')")
    told = start(tmp_path, *COMMAND, "script.py")
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == (
        "tf_bn_ops run: the layers of Keras stay as they are, because it runs on the backend jax: "
        "set KERAS_BACKEND=tensorflow, or leave its layers out: tf_bn_ops.enable(keras=False), or "
        "TF_BN_OPS=kernels,fuse; --only=kernels,fuse leaves it out\n"
    )
    assert start(tmp_path, *COMMAND, "--only=kernels,fuse", "script.py").returncode == 0


TESTS = STATE.partition("if __name__")[0] + "import pytest\n" + (
    "@pytest.mark.parametrize('i', range(2))\n"
    "def test_state(i):\n    open(f'state{i}', 'w').write(state())\n"
)  # fmt: skip


@pytest.mark.long
def test_workers_of_pytest_xdist_have_it(tmp_path):
    pytest.importorskip("xdist")
    (tmp_path / "test_it.py").write_text(TESTS)
    told = start(tmp_path, *COMMAND, "-m", "pytest", "-q", "-n2", "-p", "no:cacheprovider")
    assert told.returncode == 0, told.stdout + told.stderr
    for i in range(2):
        assert_on((tmp_path / f"state{i}").read_text())


# ---- Notebooks -----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    "before", ["", "import tensorflow", "import keras", "import tf_bn_ops.keras"]
)
def test_the_extension_works_before_and_after_the_imports(tmp_path, before):
    extension = "import tf_bn_ops\ntf_bn_ops.load_ipython_extension(None)\n"
    (tmp_path / "script.py").write_text(f"{before}\n{2 * extension}{STATE}")
    told = start(tmp_path, "script.py")
    assert told.returncode == 0, told.stderr[-3000:]
    assert_on(told.stdout)
    assert len(LINE.findall(told.stdout)) == 1


NOTEBOOK = """
import json, sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3")
said = []
for cell in json.loads(sys.argv[1]):
    reply = client.execute_interactive(cell, timeout=300, output_hook=lambda message: said.append(
        message["content"].get("text", "")))
    assert reply["content"]["status"] == "ok", reply
manager.shutdown_kernel()
print("".join(said))
"""
FIT = """
model = keras.Sequential([keras.Input([8, 8, 3]), keras.layers.BatchNormalization()])
model.compile("sgd", "mse", jit_compile=False)
x = np.ones([4, 8, 8, 3], np.float32)
_ = model.fit(x, x, verbose=0)
"""


@pytest.mark.long
def test_a_notebook_kernel(tmp_path):
    import json

    target = tmp_path / "packages"
    pip = [sys.executable, "-m", "pip", "install", "-q", f"--target={target}", "ipykernel"]
    if run(pip, tmp_path).returncode != 0:
        pytest.skip("needs an index of packages")
    kernel = tmp_path / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    words = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": words, "display_name": "3"}))
    cells = ["import keras, numpy as np", "%load_ext tf_bn_ops", FIT]
    cells.append(STATE.partition("if __name__")[0] + "print(state())")
    (tmp_path / "script.py").write_text(NOTEBOOK)
    paths = {"JUPYTER_PATH": str(tmp_path / "jupyter"), "PYTHONPATH": f"{ROOT}:{target}"}
    told = start(tmp_path, "script.py", json.dumps(cells), **paths)
    assert told.returncode == 0, told.stdout + told.stderr[-3000:]
    assert_on(told.stdout.strip())
    assert len(LINE.findall(told.stdout)) == 1
