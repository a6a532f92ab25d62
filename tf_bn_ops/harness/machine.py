"""The machine and the software of a run."""

from __future__ import annotations

import datetime
import functools
import glob
import os
import pathlib
import platform
import re
from typing import Any

from tf_bn_ops import _loader, _version
from tf_bn_ops.harness import c_abi


def _read(path: str) -> str:
    try:
        return pathlib.Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int:
    """Bytes that can be had without swapping; practically endless where the system does not say."""
    match = re.search(r"^MemAvailable:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return int(match.group(1)) << 10 if match else 1 << 60


def cpu_model() -> str:
    """The processor's name for itself."""
    match = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return match.group(1) if match else platform.processor() or platform.machine()


@functools.cache
def caches() -> dict[str, int]:
    """Name (L1d, L2, L3) -> bytes of one of them, as the first processor sees it."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    found = {}
    for folder in sorted(glob.glob("/sys/devices/system/cpu/cpu0/cache/index*")):
        kind = _read(f"{folder}/type")
        size = re.fullmatch(r"(\d+)([KMG]?)", _read(f"{folder}/size"))
        if size and kind in ("Data", "Unified"):
            name = f"L{_read(f'{folder}/level')}{'d' if kind == 'Data' else ''}"
            found[name] = int(size.group(1)) * units[size.group(2)]
    return found


def _total_memory() -> int | None:
    match = re.search(r"^MemTotal:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return int(match.group(1)) << 10 if match else None


def memory() -> int:
    """Bytes that this process may have: the machine's, or fewer where a container, or another
    cgroup, is limited (version 2, or memory of version 1)."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mounted, name = "/sys/fs/cgroup", "memory.max"
        if controllers:
            mounted, name = f"{mounted}/memory", "memory.limit_in_bytes"
        # Groups above limit, too; inside a container the path may be the one outside of it.
        for group in (path, *map(str, pathlib.PurePosixPath(path).parents)):
            text = _read(f"{mounted}/{group.strip('/')}/{name}")
            limits += [int(text)] if text.isdigit() else []  # "max": none.
    return min(limits)


def _virtual() -> str:
    flags = re.search(r"^flags\s*:(.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return " in a virtual machine" if flags and "hypervisor" in flags.group(1).split() else ""


def _isa() -> str | None:
    """The ISA build that the ops use on this processor, and whether the environment forces it; None
    where it is not built: ops from elsewhere do not need it."""
    try:
        forced = os.environ.get(c_abi.ISA_VARIABLE)
        return f"{forced} (forced)" if forced else c_abi.fastest()
    except (ImportError, OSError):
        return None


def hardware() -> dict[str, Any]:
    """The processor, what this library uses of it, and the operating system."""
    return {
        "cpu": cpu_model(),
        "architecture": platform.machine(),
        "cores": cores(),
        "isa": _isa(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}{_virtual()}",
    }


def describe() -> dict[str, Any]:
    """What a reader needs in order to judge the figures."""
    return {
        **hardware(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "caches": caches(),
        "memory_bytes": _total_memory(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "tf_bn_ops": _version.__version__,
        "compiler": _loader.build_info().get("compiler"),
    }
