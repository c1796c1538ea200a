"""Principal directions: of what nodes write, of what the circuit explains, and of the context.

The context of a node is what every node before it wrote at the same position: each write centred, in units of its
centred rms and reduced to `OF_EACH` components, all of them together to `REGRESSORS`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from eics.scoring.calibration.sheaf.samples import Layout, Samples

OUTPUTS = 32  # components of a write that are predicted, P_v
REGRESSORS = 64  # components of what is explained, and as many of the context
OF_EACH = 24  # components of each node's write in a context
_LEAST = 1e-6  # of the largest singular value


@dataclass(frozen=True)
class Bases:
    """Orthonormal directions, padded with zeros where a node has fewer; float64.

    Attributes:
        write_mean, write: (nodes, d) and (nodes, OUTPUTS, d).
        explained_mean, explained: (judged, d) and (judged, REGRESSORS, d).
        unit: 1 over the centred rms of each node's write, (nodes,), 0 for a node that does not vary.
        context: (judged, REGRESSORS, nodes * OF_EACH).
        outputs, by_explained, by_context: how many components each judged node has, (judged,).
        places: where the judged nodes stand among all, (judged,).
    """

    write_mean: Tensor
    write: Tensor
    explained_mean: Tensor
    explained: Tensor
    unit: Tensor
    context: Tensor
    outputs: Tensor
    by_explained: Tensor
    by_context: Tensor
    places: Tensor

    @classmethod
    def of(cls, samples: Samples, layout: Layout, size: int, rounding: float) -> "Bases":
        """From the rows of the basis prompts; `size` is how many rows the whole fit has, which bounds the numbers of
        components: a quarter for outputs, an eighth for either kind of regressor. `rounding` is what rounding does to a
        vector, as a share of its rms: directions in which it varies less are noise.
        """
        samples = samples.to("cpu", torch.float64)
        most_outputs, most = min(OUTPUTS, size // 4), min(REGRESSORS, size // 8)
        of_writes = [_principal(own, OUTPUTS, rounding * _rms(own)) for own in _rows_by_node(samples, layout)]
        write_mean, write = (torch.stack(parts) for parts in zip(*of_writes, strict=True))
        counted = [rows[kept > 0] for rows, kept in zip(samples.explained, samples.counts, strict=True)]
        of_explained = [_principal(own, REGRESSORS, rounding * _rms(own), most) for own in counted]
        explained_mean, explained = (torch.stack(parts) for parts in zip(*of_explained, strict=True))
        centred = samples.writes - write_mean.unsqueeze(1)
        rms = centred.square().mean(dim=(1, 2)).sqrt()
        unit = torch.where(rms > 0, 1.0 / rms, 0.0)
        reduced = _reduced(centred, write, unit)  # (R, nodes, OF_EACH)
        noise = rounding * float((unit * samples.writes.square().mean(dim=(1, 2)).sqrt()).max())
        before = torch.tensor(layout.before, dtype=torch.float64)
        context = torch.stack(
            [
                _principal((reduced[kept > 0] * allowed.unsqueeze(1)).flatten(1), REGRESSORS, noise, most)[1]
                for allowed, kept in zip(before, samples.counts, strict=True)
            ]
        )
        own = write[layout.places]
        own[:, most_outputs:] = 0.0
        return cls(
            write_mean,
            write,
            explained_mean,
            explained,
            unit,
            context,
            _components(own),
            _components(explained),
            _components(context),
            torch.tensor(layout.places),
        )

    @cached_property
    def own_write(self) -> Tensor:
        """P_v of the judged nodes, (judged, OUTPUTS, d): zeros past the components that are predicted."""
        return self.write[self.places] * _kept(self.outputs, self.write.shape[1]).to(self.write.dtype)

    @property
    def single(self) -> "Bases":
        """The same with directions in float32, to which they were rounded: half as much to read for each token."""
        return replace(self, write=self.write.float(), explained=self.explained.float(), context=self.context.float())

    def to(self, device: torch.device) -> "Bases":
        """The bases on another device."""
        return Bases(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


@dataclass(frozen=True)
class Coordinates:
    """Samples in the bases; (judged, R, ...), in float64, or in float32 if they are kept.

    Attributes:
        outputs: y, what is predicted of a write, (judged, R, OUTPUTS).
        regressors: x, of what is explained and of the context, (judged, R, 2 * REGRESSORS).
        outside: energy of the write outside its directions, (judged, R). explained_outside: of what is explained.
        size, deviation, explained_deviation: ||a||^2, ||a - mean||^2, ||e - mean||^2, (judged, R).
        counts: as in `Samples`.
    """

    outputs: Tensor
    regressors: Tensor
    outside: Tensor
    explained_outside: Tensor
    size: Tensor
    deviation: Tensor
    explained_deviation: Tensor
    counts: Tensor

    @classmethod
    def none(cls, judged: int) -> "Coordinates":
        """No row yet."""
        return cls(*(torch.zeros(judged, 0, *more) for more in ROWS.values()))

    @classmethod
    def cat(cls, parts: "Sequence[Coordinates]") -> "Coordinates":
        """The rows of one after those of another."""
        return cls(*(torch.cat([getattr(part, name) for part in parts], dim=1) for name in ROWS))

    def rows(self, kept: slice) -> "Coordinates":
        """Some of the rows, in float64."""
        return Coordinates(*(getattr(self, name)[:, kept].double() for name in ROWS))

    def cpu(self) -> "Coordinates":
        """On the host in float32, as files store them: there is one row for each prompt that is kept, or more."""
        return Coordinates(*(getattr(self, name).cpu().float() for name in ROWS))


ROWS: dict[str, tuple[int, ...]] = {
    "outputs": (OUTPUTS,),
    "regressors": (2 * REGRESSORS,),
    **dict.fromkeys(("outside", "explained_outside", "size", "deviation", "explained_deviation", "counts"), ()),
}
"""The fields of coordinates, with the shape of a row."""


def coordinates(bases: Bases, samples: Samples) -> Coordinates:
    """The samples in the bases."""
    places = bases.places
    writes = samples.writes.double()
    centred = writes - bases.write_mean.unsqueeze(1)
    own = centred[places]
    masked = bases.own_write
    outputs = _through(own, masked.mT)
    given = samples.explained.double() - bases.explained_mean.unsqueeze(1)
    by_explained = _through(given, bases.explained.mT)
    reduced = _reduced(centred, bases.write, bases.unit).flatten(1)
    by_context = _through(reduced, bases.context.mT)  # (judged, R, REGRESSORS)
    deviation, explained_deviation = own.square().sum(dim=2), given.square().sum(dim=2)
    return Coordinates(
        outputs,
        torch.cat([by_explained, by_context], dim=2),
        # not as a difference of squared norms, which would leave rounding errors in place of zeros
        (own - _through(outputs, masked)).square().sum(dim=2),
        (given - _through(by_explained, bases.explained)).square().sum(dim=2),
        writes[places].square().sum(dim=2),
        deviation,
        explained_deviation,
        samples.counts.double(),
    )


def _through(rows: Tensor, matrix: Tensor) -> Tensor:
    """Rows in float64 through a matrix, in the precision of the matrix."""
    return (rows.to(matrix.dtype) @ matrix).double()


def _rows_by_node(samples: Samples, layout: Layout) -> list[Tensor]:
    """Each node's rows that count: all, but for a judged node that is not at every position."""
    counts = dict(zip(layout.judged, samples.counts, strict=True))
    return [
        rows[counts[name] > 0] if name in counts else rows
        for name, rows in zip(layout.nodes, samples.writes, strict=True)
    ]


def _rms(rows: Tensor) -> float:
    return float(rows.square().mean().sqrt())


def _principal(rows: Tensor, size: int, noise: float, most: int | None = None) -> tuple[Tensor, Tensor]:
    """The mean and the first principal directions of rows (R, d): (d,) and (size, d), zeros past `most` and past those
    in which they vary by more than the standard deviation `noise`."""
    mean = rows.mean(dim=0)
    directions = rows.new_zeros(size, rows.shape[1])
    _, values, vectors = torch.linalg.svd(rows - mean, full_matrices=False)
    least = max(_LEAST * float(values[0]), noise * len(rows) ** 0.5)
    count = min(int((values > least).sum()), size, size if most is None else most)
    directions[:count] = vectors[:count]
    return mean, directions


def _reduced(centred: Tensor, directions: Tensor, unit: Tensor) -> Tensor:
    """Each node's first components in units of its centred rms, (R, nodes, OF_EACH)."""
    components = _through(centred, directions[:, :OF_EACH].mT)
    return (components * unit[:, None, None]).transpose(0, 1)


def _components(directions: Tensor) -> Tensor:
    """How many directions are not zero."""
    return directions.abs().amax(dim=2).gt(0).sum(dim=1)


def _kept(counts: Tensor, size: int) -> Tensor:
    """1 for the first directions of each node, (judged, size, 1)."""
    return (torch.arange(size, device=counts.device) < counts.unsqueeze(1)).double().unsqueeze(2)
