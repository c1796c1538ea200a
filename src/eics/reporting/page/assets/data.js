// The data of the page, decoded on first use.

/**
 * @typedef {[number, string]} Packed  the largest magnitude of a list, and the list in half precision
 * @typedef {{id: string|number, prompt?: string, tokens?: string[], answer?: string, label?: string}} Prompt
 * @typedef {Prompt & {run: number, status: string, reason?: string, alpha?: number, values: (number|null)[],
 *   errors?: (number|null)[], usual?: (number|null)[], more?: Object<string, number>, consistent?: boolean,
 *   total?: number, most: number, angles?: boolean, edges: string, fine?: string, norm?: Packed, ei?: Packed,
 *   branch?: Packed, nodeShare?: Packed, nodeResidual?: Packed, nodeTotal?: number, nodeZ?: Packed,
 *   verdict?: string, suspects?: string[], nodeP?: Packed, nodeR2?: Packed, nodeReason?: Object<string, string>,
 *   curve?: {grid: number, dei: Packed, zeros?: number[]}, predictions?: [string, number][], warnings?: string[],
 *   details?: {positions: Object<string, Packed>, tops: Object<string, [string, number][]>,
 *     patterns: Object<string, {queries: number[], keys: number, lengths: number[], weights: Packed}>,
 *     expected?: Object<string, {tops: [string, number][][], parents: [string, number][], shares: (number|null)[]}>},
 *   mean?: number}} Entry  a mean over the prompts of a run has their number in `mean`
 * @typedef {{kind: "edge"|"node", index: number}} Term
 */

const NUMBER = Object.fromEntries(DATA.numbers.map((name, index) => [name, index]));
/** @type {Entry[]} */
const RECORDS = DATA.records.map(({ promptIndex, ...record }) => ({ ...DATA.prompts[promptIndex], ...record }));

// As in eics/reporting/page/packing.py: the largest codes of a share and of a cosine, one more for "missing".
const SHARES = 3728;
const COSINES = 200;
const DECADES = 12;

/** Shares and cosines of the edges: three letters per edge, and one more for each of the largest shares. */
function pairs(packed, fine, most) {
  const level = [];
  const cosine = [];
  for (let i = 0; i < packed.length; i += 3) {
    const number = (WORTH.get(packed[i]) * 91 + WORTH.get(packed[i + 1])) * 91 + WORTH.get(packed[i + 2]);
    const [high, low] = [Math.floor(number / (COSINES + 2)), number % (COSINES + 2)];
    level.push(high > SHARES ? NaN : high);
    cosine.push(low > COSINES ? NaN : (2 * low) / COSINES - 1);
  }
  const large = [...level.keys()].filter((index) => level[index] > 0).sort((a, b) => level[b] - level[a] || a - b);
  for (const [at, letter] of [...fine].entries()) level[large[at]] += WORTH.get(letter) / 90 - 0.5;
  const share = level.map((code) => (code === 0 ? 0 : most * 10 ** (DECADES * ((code - 1) / (SHARES - 1) - 1))));
  return { share, cosine };
}

/** Decodes a half-precision number; few browsers have Float16Array yet. */
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return NaN;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

function halves(packed) {
  if (!packed) return [];
  const [most, letters] = packed;
  const raw = atob(letters);
  return Array.from({ length: raw.length / 2 }, (_, i) => (half(raw.charCodeAt(2 * i) + 256 * raw.charCodeAt(2 * i + 1)) / 32768) * most);
}

const decoded = new Map();

/** The lists of a record, by edge or node in the circuit's order; NaN stands for a missing number. */
function unpack(/** @type {Entry} */ record) {
  if (!decoded.has(record) && record.mean) decoded.set(record, meanLists(record.run));
  if (!decoded.has(record)) {
    const lists = pairs(record.edges, record.fine ?? "", record.most);
    for (const name of ["norm", "ei", "branch", "nodeShare", "nodeResidual", "nodeZ", "nodeP", "nodeR2"]) lists[name] = halves(record[name]);
    if (!record.nodeResidual && record.nodeTotal) lists.nodeResidual = lists.nodeShare.map((share) => share * record.nodeTotal);
    lists.residual = lists.share.map((share) => share * (record.total ?? 0));
    lists.dei = halves(record.curve?.dei);
    decoded.set(record, lists);
  }
  return decoded.get(record);
}

const LISTS = ["share", "cosine", "residual", "norm", "ei", "branch", "nodeShare", "nodeResidual", "nodeZ"];
const withoutGaps = (numbers) => numbers.filter((number) => !missing(number));
const average = (numbers) => (withoutGaps(numbers).length ? withoutGaps(numbers).reduce((sum, number) => sum + number, 0) / withoutGaps(numbers).length : NaN);
const means = new Map();

/** A run as if it were one prompt: every number is the mean over its scored prompts. Nothing is decoded before its use. */
function meanOf(run) {
  if (!means.has(run)) {
    const records = recordsOf(run).filter(scored);
    const values = DATA.numbers.map((_, index) => average(records.map((record) => record.values[index])));
    means.set(run, {
      id: `mean of ${records.length} prompts`, run, status: "ok", mean: records.length, values: values.map((number) => (missing(number) ? null : number)),
      get most() {
        return Math.max(0, ...withoutGaps(unpack(this).share));
      },
    });
  }
  return means.get(run);
}

function meanLists(run) {
  const all = recordsOf(run).filter(scored).map(unpack);
  const lists = { nodeP: [], nodeR2: [], dei: [] };
  for (const name of LISTS) lists[name] = (all.find((one) => one[name].length)?.[name] ?? []).map((_, index) => average(all.map((one) => one[name][index])));
  return lists;
}

const INDEX = new Map(RECORDS.map((record, index) => [record, index]));
const runOf = (record) => DATA.runs[record.run];
const circuitOf = (record) => DATA.circuits[runOf(record).circuit];
const value = (record, name) => record.values[NUMBER[name]];
const errorOf = (record, name) => record.errors?.[NUMBER[name]];
const scored = (record) => record.status !== "failed"; // a number may be missing because nobody asked for it
const recordsOf = (run) => RECORDS.filter((record) => record.run === run);
const promptText = (record) => record.prompt ?? (record.tokens ? record.tokens.join("") : "");
const labelOf = (record) => record.label ?? "no label";
const judged = (record) => record.verdict !== undefined; // compared with what is usual, node by node
const suspected = (record, index) => Boolean(record.suspects?.includes(circuitOf(record).nodes[index][0]));
/** Whether a record was scored by node alone, so that nothing is known of its edges. */
const nodesAlone = (record) => !edgesByShare(record).length && unpack(record).nodeShare.length > 0;

/** The same prompt in a run, or undefined. */
function twin(record, run) {
  if (record.run === run) return record;
  if (record.mean) return meanOf(run);
  const same = (other) => other.id === record.id && (promptText(other) === promptText(record) || !promptText(other) || !promptText(record));
  return recordsOf(run).find(same);
}

function edgeName(circuit, index) {
  const [source, target, port] = circuit.edges[index];
  const name = (end) => (typeof end === "number" ? circuit.nodes[end][0] : end);
  return `${name(source)}->${name(target)}${port ? `<${port}>` : ""}`;
}

/** The edges that count towards C_sh in this record, the most inconsistent first. */
function edgesByShare(record) {
  const { share } = unpack(record);
  const counted = [...share.keys()].filter((index) => !Number.isNaN(share[index]));
  return counted.sort((a, b) => share[b] - share[a]);
}

/** What a node contributes: its own term of C_sh, or the terms of the edges into it if C_sh is taken by edge. */
function ofNodes(record, measure) {
  const lists = unpack(record);
  if (measure === "norm" || measure === "ei") return lists[measure];
  if (measure === "z") return lists.nodeZ;
  const own = measure === "share" ? lists.nodeShare : lists.nodeResidual;
  if (own.length) return own;
  const sums = circuitOf(record).nodes.map(() => NaN);
  for (const [index, [, target]] of circuitOf(record).edges.entries()) {
    const term = measure === "share" ? lists.share[index] : lists.residual[index];
    if (typeof target === "number" && !missing(term)) sums[target] = (sums[target] || 0) + term;
  }
  return sums;
}

/** How bad a node is: how unusual if the record says so, else what it contributes. */
const badness = (record) => (judged(record) ? unpack(record).nodeZ : ofNodes(record, "share"));

/** The nodes, the worst first; those without a number keep their order and come last. */
function nodesByBadness(record) {
  const bad = badness(record);
  const size = (index) => (missing(bad[index]) ? -Infinity : bad[index]);
  return [...circuitOf(record).nodes.keys()].sort((a, b) => (size(a) === size(b) ? a - b : size(b) - size(a)));
}

/** The settings in which the runs of two records differ, each with both values. */
const settingsApart = (record, other) => DATA.differences.map(({ name, values }) => [name, values[record.run], values[other.run]]).filter(([, ours, theirs]) => ours !== theirs);
