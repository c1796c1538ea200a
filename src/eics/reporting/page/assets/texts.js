// The texts of a trace, unpacked on first use.

const NONE = TWO - 1; // the code of a missing node

/** Two letters as a code. */
const codeAt = (letters, index) => WORTH.get(letters[2 * index]) * 91 + WORTH.get(letters[2 * index + 1]);

const unpacked = new Map();

/**
 * z by node and token, the largest z of each token with its node, and the nodes in the order of their largest z.
 * `z(node, token)` is NaN where nothing is judged or the page keeps no value.
 */
function traceOf(given) {
  if (!unpacked.has(given)) unpacked.set(given, unpackText(given));
  return unpacked.get(given);
}

function unpackText(given) {
  const length = given.tokens.length;
  const values = unpackZ(given.z ?? "", given.far);
  const rows = given.rows ?? [...DATA.nodes.keys()];
  const rowOf = new Map(rows.map((node, row) => [node, row]));
  const largest = unpackZ(given.largest, given.largestFar);
  const at = Array.from({ length }, (_, index) => (codeAt(given.at, index) === NONE ? null : codeAt(given.at, index)));
  const z = (node, token) => (rowOf.has(node) ? values[rowOf.get(node) * length + token] : NaN);
  const peak = new Map(rows.map((node, row) => [node, values.subarray(row * length, (row + 1) * length).reduce((most, one) => (one > most ? one : most), -Infinity)]));
  const suspects = new Map(); // by token
  for (const [node, token, size] of given.suspects) suspects.set(token, [...(suspects.get(token) ?? []), [node, size]]);
  return { rows, largest, at, z, suspects, byPeak: [...rows].sort((a, b) => peak.get(b) - peak.get(a)), peak };
}

const wordsOf = (given) => given.text ?? given.tokens?.join("") ?? "";

/**
 * Full colour is reached at the threshold: everything that is a suspect is as strong as can be. Below it the colour
 * grows with the square: the largest of many usual values is well above 0 and must stay pale.
 */
const FULL = DATA.threshold ?? 4;
const unusualness = (part) => aboveUsual(clamp(part, 0, 1) ** 2);
const colourOfZ = (z) => unusualness(z / FULL);
