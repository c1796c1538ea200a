// The distribution of each number over the prompts, one row per label: selectable dots for few prompts, bars for many.

const WIDE = 330;
const TALL = 34;
const BINS = 44;
const DOT = 3.4;

const NAMES = {
  p_value: "p", p_value_mean: "p of the mean", eics: "EICS", c_sh: "C_sh", dei: "dEI (nats)", dei_norm: "emergence term", ei_macro: "macro EI (nats)",
  emergence_ratio: "emergence ratio r", percentile: "percentile",
};

/** What a record's C_sh is called: relative to a reference it is C_ref, which is 1 on a usual prompt. */
const sheafName = (record) => (runOf(record).judged ? "C_ref" : "C_sh");
const numberName = (record, name) => (name === "c_sh" ? sheafName(record) : NAMES[name]);

/** A record in a few words: its score and C_sh, as far as it has them, or its status. */
function headline(record) {
  const known = [judged(record) ? "p_value" : "eics", "c_sh"].filter((name) => scored(record) && !missing(value(record, name)));
  return known.map((name) => `${numberName(record, name)} ${text(value(record, name))}`).join(", ") || record.status;
}

/** One figure per number. `rows` are labels with their colours; a label of null takes every record. */
function renderDistributions(records, rows, chosen, choose) {
  const having = (name) => records.filter((record) => !missing(value(record, name)));
  return Object.keys(NAMES).filter((name) => having(name).length).map((name) => distribution(name, having(name), rows, chosen, choose));
}

function distribution(name, records, rows, chosen, choose) {
  const title = numberName(records[0], name);
  const values = records.map((record) => value(record, name));
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (low === high) return el("figure", { class: "distribution" }, el("figcaption", {}, title, el("small", {}, ` ${text(low)} on every prompt`)));
  const x = (number) => 12 + ((number - low) / (high - low)) * (WIDE - 24);
  const bin = (number) => Math.min(BINS - 1, Math.floor(((number - low) / (high - low)) * BINS));
  const picture = svg("svg", { class: "spread", viewBox: `0 0 ${WIDE} ${rows.length * TALL + 20}`, role: "img", "aria-label": `Distribution of ${title}` });
  for (const [index, { label, colour }] of rows.entries()) {
    const group = records.filter((record) => label === null || labelOf(record) === label);
    picture.append(...spreadRow(group, name, x, bin, (index + 1) * TALL - 4, colour, chosen, choose));
  }
  const base = rows.length * TALL;
  const ends = [low, (low + high) / 2, high];
  picture.append(...ends.map((at) => svg("text", { x: x(at), y: base + 13, class: "tick", "text-anchor": at === low ? "start" : at === high ? "end" : "middle" }, text(at, 3))));
  return el("figure", { class: "distribution" }, el("figcaption", {}, title), picture);
}

function spreadRow(group, name, x, bin, base, colour, chosen, choose) {
  const marks = [svg("line", { x1: 8, x2: WIDE - 8, y1: base, y2: base, class: "axis" })];
  const bins = Array.from({ length: BINS }, () => []);
  for (const record of group) bins[bin(value(record, name))].push(record);
  const highest = Math.max(1, ...bins.map((members) => members.length));
  if (highest <= 5 && group.length <= 120) {
    for (const members of bins) for (const [level, record] of members.entries()) marks.push(dot(record, name, x, base - DOT - 1 - level * (2 * DOT + 0.6), colour, chosen, choose));
  } else {
    const step = (WIDE - 24) / BINS;
    for (const [index, members] of bins.entries()) {
      const height = (members.length / highest) * (TALL - 14);
      if (members.length) marks.push(svg("rect", { x: 12 + index * step + 0.5, y: base - height, width: step - 1, height, fill: colour }, svg("title", {}, `${members.length} prompts`)));
    }
    if (group.includes(chosen)) marks.push(svg("path", { d: `M${x(value(chosen, name))} ${base + 1}l-4 7h8z`, class: "here" }));
  }
  const sorted = group.map((record) => value(record, name)).sort((a, b) => a - b);
  if (sorted.length > 2) {
    const at = x((sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2);
    marks.push(svg("line", { x1: at, x2: at, y1: base - TALL + 12, y2: base, class: "median" }, svg("title", {}, "median")));
  }
  return marks;
}

function dot(record, name, x, y, colour, chosen, choose) {
  const hollow = name === "eics" && record.status === "clipped";
  return svg("circle", {
    cx: x(value(record, name)), cy: y, r: record === chosen ? DOT + 1.6 : DOT, fill: hollow ? "none" : colour, stroke: record === chosen ? "currentColor" : colour,
    "stroke-width": record === chosen ? 2 : 1.2, class: "dot", onclick: () => choose(record),
  }, svg("title", {}, `${record.id}: ${text(value(record, name))}${hollow ? ", clipped to 0" : ""}`));
}
