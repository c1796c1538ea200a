// What a judged node wrote against what was expected of it, and what carried it away from that.

const TOKENS_SHOWN = 5; // of each of the three columns
const CARRIED = ["other parents", "less what was expected", "from off the circuit"];

/** The panel of a selected node: tokens of both writes, then signed shares; nothing if the record does not have it. */
function againstExpected(record, term, actions) {
  const name = term?.kind === "node" ? circuitOf(record).nodes[term.index][0] : null;
  const entry = record.details?.expected?.[name];
  return entry ? [bothWrites(name, entry.tops), carriedBy(record, name, entry, actions)] : null;
}

const tokenChip = (token) => el("span", { class: "token" }, token.replaceAll("\n", "⏎"));

function bothWrites(name, tops) {
  const cell = (pair) => el("td", {}, pair ? [tokenChip(pair[0]), " ", el("small", { class: "dim" }, text(pair[1], 3))] : null);
  const rows = Array.from({ length: Math.min(TOKENS_SHOWN, Math.max(...tops.map((list) => list.length))) }, (_, i) => el("tr", {}, tops.map((list) => cell(list[i]))));
  return [
    el("table", { class: "tops", id: "writes" }, el("caption", {}, `${name} against what was expected`),
      el("thead", {}, el("tr", {}, ["wrote", "expected", "difference"].map((title) => el("th", { scope: "col" }, title)))), el("tbody", {}, rows)),
    el("p", { class: "dim" }, "The tokens to whose logits each adds most, through the final norm and the unembedding."),
  ];
}

/** One bar for each parent and for what no parent brought; together they are 100% of what was unusual. */
function carriedBy(record, name, { parents, shares }, actions) {
  const lines = [...parents.map(([parent, share]) => [parentName(record, parent, actions), share]), ...CARRIED.map((words, i) => [words, shares[i]])].filter(([, share]) => !missing(share));
  if (!lines.length) return null;
  const most = Math.max(...lines.map(([, share]) => Math.abs(share))) || 1;
  const bar = (share) => el("span", { class: "bar" }, el("i", { class: share < 0 ? "negative" : null, "data-share": share, style: { width: `${(100 * Math.abs(share)) / most}%` } }));
  return [
    el("table", { class: "tops", id: "carried" }, el("caption", {}, "What carried it there"), el("tbody", {}, lines.map(([from, share]) => el("tr", {}, el("th", { scope: "row" }, from), el("td", { class: "number" }, percent(share)), el("td", {}, bar(share)))))),
    el("p", { class: "dim" }, `Signed shares of what is unusual about ${name}; they add up to 100%. An exchanged write comes from off the circuit.`),
  ];
}

/** A parent's name, as a button that selects it if the picture has it. */
function parentName(record, parent, actions) {
  const index = circuitOf(record).nodes.findIndex(([node]) => node === parent);
  return index < 0 ? parent : el("button", { type: "button", class: "link", onclick: () => actions.choose({ kind: "node", index }) }, parent);
}
