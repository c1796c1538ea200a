"""Time and memory of a computation, compared with the forward pass in the same process, and its work.

Runs alternate with forward passes, so that a slow moment of the machine affects both; the cost of a run is its time
over the mean of the passes before and after it.

Work does not depend on the machine: products with maps and their transposes, and FLOPs. A product is one vector through
one map of one prompt: a block of k vectors for B prompts counts B*k. Only maps that are computed from weights count,
not sums, stacks and paths of them: of nested calls only the innermost. FLOPs are those of matrix products (torch's own
counter); factorizations, which that counter leaves out, are estimated by their textbook leading terms and reported
separately.
"""

import ctypes
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import torch
from torch import Tensor

from eics.linalg.operators import LinearOperator

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


@dataclass(frozen=True)
class Counts:
    """Products J x and J^T y, FLOPs of matrix products, FLOPs of factorizations."""

    jvp: int
    vjp: int
    matmul_flops: int
    factorization_flops: int

    @property
    def flops(self) -> int:
        return self.matmul_flops + self.factorization_flops


def count(function: Work) -> Counts:
    """Runs the function once and counts its work."""
    from torch.utils.flop_counter import FlopCounterMode

    with _counted_products() as products, FlopCounterMode(display=False, custom_mapping=_flop_formulas()) as counter:
        function()
    by_operation = {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}
    factorized = sum(flops for name, flops in by_operation.items() if "linalg" in name or "cholesky" in name)
    return Counts(products["mv"], products["rmv"], sum(by_operation.values()) - factorized, factorized)


@contextmanager
def _counted_products() -> Iterator[dict[str, int]]:
    """Counts the calls of `mv` and `rmv` of every operator class inside the context."""
    counts = {"mv": 0, "rmv": 0}
    inner: list[bool] = []  # for each call in progress: whether it has called another operator
    originals: list[tuple[type, str, Any]] = []
    try:
        for kind in _subclasses(LinearOperator):
            for name in counts:
                if name in vars(kind):
                    originals.append((kind, name, vars(kind)[name]))
                    setattr(kind, name, _counting(vars(kind)[name], name, counts, inner))
        yield counts
    finally:
        for kind, name, original in originals:
            setattr(kind, name, original)


def _counting(product: Any, name: str, counts: dict[str, int], inner: list[bool]) -> Any:
    @wraps(product)
    def counting(self: LinearOperator, block: Tensor) -> Tensor:
        if inner:
            inner[-1] = True
        inner.append(False)
        try:
            image: Tensor = product(self, block)
        finally:
            nested = inner.pop()
        if not nested:
            counts[name] += image.shape[0] * image.shape[2]
        return image

    return counting


def _subclasses(kind: type) -> set[type]:
    kinds = {kind}
    below: type
    for below in type.__subclasses__(kind):
        kinds |= _subclasses(below)
    return kinds


def _flop_formulas() -> dict[Any, Any]:
    """Fused attention, grouped queries included, and factorizations, which torch's counter lacks.

    Attention has two (T, S, e) products per query head. Factorizations go by the shape of the matrix, n the long side
    and m the short one: Golub and Van Loan's leading terms, eigenvalues and singular values without vectors.
    """
    aten = torch.ops.aten

    def attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        batch, heads, length, width = query
        return int(2 * batch * heads * length * key[-2] * (width + value[-1]))

    def batched(cost: Callable[[int, int], float]) -> Callable[..., int]:
        def flops(shape: Any, *_: Any, **__: Any) -> int:
            *batch, rows, columns = shape
            return int(prod(batch) * cost(max(rows, columns), min(rows, columns)))

        return flops

    names = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
    kernels = (getattr(aten, f"_scaled_dot_product_{name}", None) for name in names)
    return {kernel: attention for kernel in kernels if kernel is not None} | {
        aten.linalg_cholesky_ex: batched(lambda _, m: m**3 / 3),
        aten._linalg_eigh: batched(lambda _, m: 4 * m**3 / 3),
        aten._linalg_svd: batched(lambda n, m: 4 * n * m**2 - 4 * m**3 / 3),
        aten.linalg_qr: batched(lambda n, m: 4 * n * m**2 - 4 * m**3 / 3),
    }
