// The distribution of a node's z in both sets: dots for few prompts, bars for many; the line is the mean.

const STRIP = 420;
const STRIP_TALL = 78;
const STRIP_BINS = 48;
const MANY = 150; // prompts of a set beyond which it is drawn as bars
const DOT_SIZE = 3.6;

/** @param {{a: Object[], b: Object[], of: (prompt) => number, chosen: string, choose: (prompt) => void, name: string}} options */
function drawStrips({ a, b, of, chosen, choose, name }) {
  const all = [...a, ...b].map(of);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const span = high - low || 1;
  const x = (number) => 30 + ((number - low) / span) * (STRIP - 44);
  const bin = (number) => Math.min(STRIP_BINS - 1, Math.floor(((number - low) / span) * STRIP_BINS));
  const base = (row) => (row + 1) * STRIP_TALL - 8;
  const bottom = base(1);
  const picture = svg("svg", { class: "strips", viewBox: `0 0 ${STRIP} ${bottom + 34}`, width: STRIP, height: bottom + 34, role: "img", "aria-label": `z of ${name}: mean ${asZ(meanOf(a.map(of)))} in A, ${asZ(meanOf(b.map(of)))} in B` },
    low < 0 && high > 0 ? svg("line", { x1: x(0), x2: x(0), y1: 8, y2: bottom, class: "zero" }) : null,
    [a, b].map((members, row) => [
      svg("text", { x: 4, y: base(row) - 6, class: "set" }, "AB"[row]), svg("line", { x1: 26, x2: STRIP - 8, y1: base(row), y2: base(row), class: "axis" }),
      members.length > MANY ? pile(members, row) : dots(members, row),
      members.length ? svg("line", { x1: x(meanOf(members.map(of))), x2: x(meanOf(members.map(of))), y1: base(row) - STRIP_TALL + 22, y2: base(row), class: "mean" }, svg("title", {}, "mean")) : null,
    ]),
    ticks(low, high).map((at) => [svg("line", { x1: x(at), x2: x(at), y1: bottom, y2: bottom + 4, class: "axis" }), svg("text", { x: x(at), y: bottom + 16, class: "tick", "text-anchor": "middle" }, tidy(String(at)))]),
    svg("text", { x: (30 + STRIP - 14) / 2, y: bottom + 32, class: "name", "text-anchor": "middle" }, `z of ${name}`));

  function binned(members) {
    const bins = Array.from({ length: STRIP_BINS }, () => []);
    for (const prompt of members) bins[bin(of(prompt))].push(prompt);
    return bins;
  }

  function dots(members, row) {
    const bins = binned(members);
    const step = Math.min(2 * DOT_SIZE + 0.4, (STRIP_TALL - 24) / Math.max(...bins.map((one) => one.length), 1));
    return bins.flatMap((one) => one.map((prompt, level) => svg("circle", {
      cx: x(of(prompt)), cy: base(row) - DOT_SIZE - 1.5 - level * step, r: prompt.key === chosen ? DOT_SIZE + 1.5 : DOT_SIZE, fill: labelColour(row), class: `dot${prompt.key === chosen ? " lit" : ""}`, "data-z": of(prompt), onclick: () => choose(prompt),
    }, svg("title", {}, `${prompt.id}: ${asZ(of(prompt))}`))));
  }

  function pile(members, row) {
    const bins = binned(members);
    const most = Math.max(...bins.map((one) => one.length));
    const wide = (STRIP - 44) / STRIP_BINS;
    return bins.map((one, index) => (one.length ? svg("rect", { x: 30 + index * wide + 0.4, width: wide - 0.8, y: base(row) - ((STRIP_TALL - 26) * one.length) / most, height: ((STRIP_TALL - 26) * one.length) / most, fill: labelColour(row), "data-count": one.length }, svg("title", {}, `${one.length} prompts`)) : null));
  }

  return picture;
}

const meanOf = (numbers) => (numbers.length ? numbers.reduce((sum, number) => sum + number, 0) / numbers.length : NaN);

/** Round numbers from low to high, at most seven. */
function ticks(low, high) {
  const rough = (high - low || 1) / 6;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((by) => by * size).find((by) => by >= rough);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.max(1, Math.floor(high / step) - first + 1) }, (_, i) => Number(((first + i) * step).toPrecision(6)));
}
