"""A child for tests of tf_bn_ops/harness/processes.py: dies in the way that a request names."""

import ctypes
import os
import sys
import time

from tf_bn_ops.harness import processes


def _say(text):
    print(text, file=sys.stderr, flush=True)


def _answer(request):
    if request == "abort":
        _say("about to abort")
        os.abort()
    if request == "exit":
        os._exit(3)
    if request == "hang":
        _say("about to hang")
        time.sleep(1000)
    if request == "raise":
        raise ValueError("no such thing")
    if request == "allocate":
        # An allocation that does not know how to fail, as in C++.
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        while libc.malloc(ctypes.c_size_t(1 << 27)):
            pass
        _say("terminate called after throwing an instance of 'std::bad_alloc'")
        os.abort()
    return request


def _make(*arguments):
    if arguments == ("missing",):
        raise ImportError("a part is missing")
    return arguments, _answer


if __name__ == "__main__":
    processes.serve(sys.argv, _make)
