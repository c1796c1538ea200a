// The view in the address after "#", so that a link shows to others what one sees.

/** A run by its label if no other run has it, else by its number. */
const runKey = (run) => (DATA.runs.filter(({ label }) => label === DATA.runs[run].label).length === 1 ? DATA.runs[run].label : String(run + 1));
const runAt = (key) => {
  const labelled = DATA.runs.findIndex(({ label }) => label === key);
  return labelled >= 0 ? labelled : (DATA.runs[Number(key) - 1] ? Number(key) - 1 : -1);
};

const copies = (run, id) => recordsOf(run).filter((record) => String(record.id) === id);

/** A record as run, id and, if several have that id, its number among them; a mean of a run has no id. */
function keyOf(record) {
  const key = { run: runKey(record.run) };
  if (record.mean) return { ...key, mean: "1" };
  const alike = copies(record.run, String(record.id));
  return { ...key, prompt: String(record.id), ...(alike.length > 1 ? { copy: String(alike.indexOf(record) + 1) } : {}) };
}

function recordAt({ run, prompt, copy, mean }) {
  const number = runAt(run ?? "");
  if (number < 0) return null;
  if (mean) return meanOf(number);
  return copies(number, prompt ?? "")[Number(copy ?? 1) - 1] ?? null;
}

function termKey(record, term) {
  if (!record || !term) return {};
  return term.kind === "node" ? { node: circuitOf(record).nodes[term.index][0] } : { edge: edgeName(circuitOf(record), term.index) };
}

function termAt(record, { node, edge }) {
  const circuit = circuitOf(record);
  if (node !== undefined) {
    const index = circuit.nodes.findIndex(([name]) => name === node);
    return index < 0 ? null : { kind: "node", index };
  }
  const index = edge === undefined ? -1 : circuit.edges.findIndex((_, number) => edgeName(circuit, number) === edge);
  return index < 0 ? null : { kind: "edge", index };
}

const prefixed = (prefix, key) => Object.fromEntries(Object.entries(key).map(([name, part]) => [`${prefix}-${name}`, part]));
const unprefixed = (prefix, given) => Object.fromEntries(Object.entries(given).filter(([name]) => name.startsWith(`${prefix}-`)).map(([name, part]) => [name.slice(prefix.length + 1), part]));

function addressOf(state) {
  const parts = {
    ...(state.record ? keyOf(state.record) : {}), ...termKey(state.record, state.term), ...(state.other ? prefixed("compare", keyOf(state.other)) : {}), ...(state.base ? prefixed("base", keyOf(state.base)) : {}),
    by: state.measure, prune: state.prune ? state.prune.toPrecision(4) : null, zoom: viewKey(state.view), "compare-zoom": viewKey(state.viewB),
    colour: state.colour, edges: state.limit === STEP ? null : String(state.limit), tab: state.tab, slides: state.slides ? "1" : null,
  };
  return new URLSearchParams(Object.entries(parts).filter(([, part]) => part !== null && part !== undefined)).toString();
}

const writeAddress = (state) => writeHash(() => addressOf(state));

/** What the address says, as far as this page has it; other parts of the state keep their first values. */
function readAddress() {
  const given = readHash();
  const record = recordAt(given);
  if (!record) return { slides: given.slides === "1" };
  const other = recordAt(unprefixed("compare", given));
  const [prune, limit] = [Number(given.prune), Number(given.edges)];
  return {
    run: record.run, record, other: other && scored(other) && other !== record ? other : null, base: recordAt(unprefixed("base", given)), term: termAt(record, given),
    measure: Object.hasOwn(MEASURES, given.by ?? "") ? given.by : null, prune: prune > 0 && prune <= 1 ? prune : 0, view: viewAt(given.zoom), viewB: viewAt(given["compare-zoom"]),
    colour: given.colour ?? null, limit: limit > 0 ? limit : STEP, tab: given.tab === "node" || given.tab === "edge" ? given.tab : undefined, slides: given.slides === "1",
  };
}
