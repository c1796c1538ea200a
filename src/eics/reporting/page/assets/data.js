"use strict";
// The data of the page, decoded on first use.

/**
 * @typedef {[number, string]} Packed  the largest magnitude of a list, and the list in half precision
 * @typedef {{id: string|number, prompt?: string, tokens?: string[], answer?: string, label?: string}} Prompt
 * @typedef {Prompt & {run: number, status: string, reason?: string, alpha?: number, values: (number|null)[],
 *   errors?: (number|null)[], more?: Object<string, number>, consistent?: boolean, total?: number, most: number,
 *   angles?: boolean, edges: string, norm?: Packed, ei?: Packed, branch?: Packed, nodeShare?: Packed,
 *   nodeResidual?: Packed, nodeTotal?: number, curve?: {grid: number, dei: Packed, zeros?: number[]}}} Entry
 * @typedef {{kind: "edge"|"node", index: number}} Term
 */

const DATA = JSON.parse(document.getElementById("data").textContent);
const NUMBER = Object.fromEntries(DATA.numbers.map((name, index) => [name, index]));
/** @type {Entry[]} */
const RECORDS = DATA.records.map(({ promptIndex, ...record }) => ({ ...DATA.prompts[promptIndex], ...record }));

// As in eics/reporting/page/packing.py: 91 letters; 2942 values of a share, 255 of a cosine, and one each for "missing".
const LETTERS = Array.from({ length: 94 }, (_, index) => String.fromCharCode(33 + index)).filter((letter) => !'"<\\'.includes(letter));
const WORTH = new Map(LETTERS.map((letter, worth) => [letter, worth]));

/** Shares and cosines of the edges, three letters per edge. */
function pairs(packed, most) {
  const share = [];
  const cosine = [];
  for (let i = 0; i < packed.length; i += 3) {
    const number = (WORTH.get(packed[i]) * 91 + WORTH.get(packed[i + 1])) * 91 + WORTH.get(packed[i + 2]);
    const [high, low] = [Math.floor(number / 256), number % 256];
    share.push(high > 2941 ? NaN : most * (high / 2941) ** 4);
    cosine.push(low > 254 ? NaN : low / 127 - 1);
  }
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
  if (!decoded.has(record)) {
    const lists = pairs(record.edges, record.most);
    for (const name of ["norm", "ei", "branch", "nodeShare", "nodeResidual"]) lists[name] = halves(record[name]);
    if (!record.nodeResidual && record.nodeTotal) lists.nodeResidual = lists.nodeShare.map((share) => share * record.nodeTotal);
    lists.residual = lists.share.map((share) => share * (record.total ?? 0));
    lists.dei = halves(record.curve?.dei);
    decoded.set(record, lists);
  }
  return decoded.get(record);
}

const INDEX = new Map(RECORDS.map((record, index) => [record, index]));
const runOf = (record) => DATA.runs[record.run];
const circuitOf = (record) => DATA.circuits[runOf(record).circuit];
const value = (record, name) => record.values[NUMBER[name]];
const errorOf = (record, name) => record.errors?.[NUMBER[name]];
const scored = (record) => value(record, "eics") !== null;
const recordsOf = (run) => RECORDS.filter((record) => record.run === run);
const promptText = (record) => record.prompt ?? (record.tokens ? record.tokens.join("") : "");
const labelOf = (record) => record.label ?? "no label";

/** The same prompt in a run, or undefined. */
function twin(record, run) {
  if (record.run === run) return record;
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
