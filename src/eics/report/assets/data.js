"use strict";
// The data of the page: decoded when it is first looked at.

/**
 * @typedef {{id: string|number, run: number, status: string, reason?: string, prompt?: string, tokens?: string[],
 *   answer?: string, label?: string, alpha?: number, values: (number|null)[], errors?: Object<string, number>,
 *   more?: Object<string, number>, consistent?: boolean, total: number, share: string, cosine?: string, norm?: string,
 *   ei?: string, branch?: string, nodeShare?: string, nodeResidual?: string,
 *   curve?: {grid: number, dei: string, zeros: number[]}}} Entry
 * @typedef {{kind: "edge"|"node", index: number}} Term
 */

const DATA = JSON.parse(document.getElementById("data").textContent);
const NUMBER = Object.fromEntries(DATA.numbers.map((name, index) => [name, index]));

/** Bytes of base64 text. */
function bytes(packed) {
  const raw = atob(packed || "");
  const view = new DataView(new ArrayBuffer(raw.length));
  for (let i = 0; i < raw.length; i++) view.setUint8(i, raw.charCodeAt(i));
  return view;
}

/** A half-precision number; browsers that can read one by themselves are still rare. */
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return NaN;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

function halves(packed) {
  const view = bytes(packed);
  return Array.from({ length: view.byteLength / 2 }, (_, i) => half(view.getUint16(2 * i, true)));
}

function singles(packed) {
  const view = bytes(packed);
  return Array.from({ length: view.byteLength / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

const decoded = new Map();

/** The lists of a record, by edge or by node in the circuit's order; nan where there is no number. */
function unpack(/** @type {Entry} */ record) {
  if (!decoded.has(record)) {
    const lists = { share: halves(record.share).map((root) => Math.sign(root) * root ** 2), cosine: halves(record.cosine) };
    for (const name of ["norm", "ei", "branch", "nodeShare", "nodeResidual"]) lists[name] = singles(record[name]);
    if (record.curve) lists.dei = singles(record.curve.dei);
    decoded.set(record, lists);
  }
  return decoded.get(record);
}

const PLACE = new Map(DATA.records.map((record, index) => [record, index]));
const circuitOf = (record) => DATA.circuits[DATA.runs[record.run].circuit];
const value = (record, name) => record.values[NUMBER[name]];
const scored = (record) => value(record, "eics") !== null;
const recordsOf = (run) => DATA.records.filter((record) => record.run === run);

function edgeName(circuit, index) {
  const [source, target, port] = circuit.edges[index];
  const name = (end) => (typeof end === "number" ? circuit.nodes[end][0] : end);
  return `${name(source)}->${name(target)}${port ? `<${port}>` : ""}`;
}

/** The edges that carry something in this record, the most inconsistent first. */
function edgesByShare(record) {
  const { share } = unpack(record);
  const known = share.map((_, index) => index).filter((index) => !Number.isNaN(share[index]));
  return known.sort((a, b) => share[b] - share[a]);
}
