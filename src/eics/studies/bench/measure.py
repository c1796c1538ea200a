"""Time and memory of a computation, compared with the forward pass in the same process.

Runs alternate with forward passes, so that a slow moment of the machine affects both; the cost of a run is its time
over the mean of the passes before and after it.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")

Work = Callable[[], object]


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of repeated measurements; all three are equal for a single one."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        low, middle, high = quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high, len(values))

    def to_json(self) -> dict[str, Any]:
        return {"median": self.median, "quartiles": [self.low, self.high], "runs": self.runs}


@dataclass(frozen=True)
class Timing:
    """Seconds of the work and of the forward passes around it, and their ratio: the cost in forward-equivalents."""

    seconds: Spread
    forward: Spread
    ratio: Spread


def timed(work: Work, device: torch.device) -> float:
    """Seconds of one run, synchronised with the device before and after."""
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start


def interleaved(work: Work, forward: Work, device: torch.device, *, repeats: int, budget: float) -> Timing:
    """Runs forward, work, forward, ..., work, forward; stops early once the budget (seconds) is spent."""
    passes = [timed(forward, device)]
    runs: list[float] = []
    while len(runs) < repeats and (not runs or sum(runs) + median(runs) < budget):
        runs.append(timed(work, device))
        passes.append(timed(forward, device))
    return timing(runs, passes)


def timing(runs: Sequence[float], passes: Sequence[float]) -> Timing:
    """The timing from the seconds of runs and of the passes before, between and after them."""
    around = [fmean(pair) for pair in pairwise(passes)]
    ratios = [run / beside for run, beside in zip(runs, around, strict=True)]
    return Timing(Spread.of(runs), Spread.of(passes), Spread.of(ratios))


def peak_memory(work: Work, device: torch.device) -> tuple[float | None, float]:
    """Peak megabytes beyond what was allocated before the work, and its seconds.

    Allocated memory on CUDA; resident memory on the CPU of a Linux machine; None elsewhere.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        seconds = timed(work, device)
        return (torch.cuda.max_memory_allocated(device) - before) / (1 << 20), seconds
    if device.type != "cpu" or not forget_peak():
        return None, timed(work, device)
    resident = megabytes("VmRSS")
    seconds = timed(work, device)
    return max(0.0, megabytes("VmHWM") - resident), seconds


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished its queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def machine(device: torch.device) -> dict[str, Any]:
    """The machine that the numbers were measured on."""
    import platform

    facts: dict[str, Any] = {
        "cpu": _cpu_name(),
        "cores": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device.type,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {"gpu": properties.name, "gpu_gigabytes": round(properties.total_memory / (1 << 30))}
    return facts


def _cpu_name() -> str:
    import platform

    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def forget_peak() -> bool:
    """Returns freed memory to the kernel and resets the process's peak; False if that is not possible here."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if _CLEAR.exists() else None
    if trim is None:
        return False
    trim(0)  # freed memory that glibc holds on to would hide what the work takes
    try:
        _CLEAR.write_text("5")
    except OSError:  # some containers forbid it
        return False
    return True


def megabytes(name: str) -> float:
    """Memory of this process from /proc: `VmRSS` is resident, `VmHWM` the peak."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024
