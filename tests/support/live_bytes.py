"""How many bytes of tensors a computation holds: `tracemalloc` is blind to torch."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the storages that operations inside allocate. `now` are those still alive, `peak` the most at any time."""

    def __init__(self):
        super().__init__()
        self.peak = 0
        self._storages = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs or {})) if isinstance(t, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in given:  # a view allocates nothing
                    self._storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, self.now)
        return out

    @property
    def now(self):
        self._storages = {key: (ref, size) for key, (ref, size) in self._storages.items() if not ref.expired()}
        return sum(size for _, size in self._storages.values())
