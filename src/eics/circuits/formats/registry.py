"""The formats that can be read and written. A new format is a new module, listed here."""

from eics.circuits.formats import (
    acdc,
    auto_circuit,
    circuit_tracer,
    dot,
    eap_json,
    eap_pt,
    edge_pruning,
    graphml,
    interpbench,
    neuronpedia,
    own,
    table,
)
from eics.circuits.formats.seam import Reader, Writer

READERS: tuple[Reader, ...] = (
    own.READER,
    eap_json.READER,
    neuronpedia.READER,
    edge_pruning.READER,
    graphml.READER,
    table.READER,
    eap_pt.READER,
    circuit_tracer.READER,
    acdc.FLAGS_READER,
    acdc.EFFECTS_READER,
    interpbench.READER,
    auto_circuit.READER,
)
WRITERS: dict[str, Writer] = {
    module.WRITER.name: module.WRITER for module in (own, eap_json, neuronpedia, table, graphml, dot)
}
