// One node's z over the tokens of a text: a line, the threshold, and the suspects.

const LINE_TALL = 190;
const LINE_LEFT = 40;
const LINE_RIGHT = 30;
const LINE_LABEL = 42; // pixels between two labels of tokens

/** @param {{given: Object, node: number, token: number|null, choose: (token: number) => void, wide: number}} options */
function drawLine({ given, node, token, choose, wide }) {
  const { z } = traceOf(given);
  const length = given.tokens.length;
  const values = Array.from({ length }, (_, index) => z(node, index));
  const judged = values.filter((value) => !missing(value));
  if (!judged.length) return null;
  const [low, high] = [Math.min(0, ...judged), Math.max(DATA.threshold ?? 1, ...judged) * 1.08];
  const base = LINE_TALL - 42;
  const x = (index) => LINE_LEFT + ((index + 0.5) / length) * (wide - LINE_LEFT - LINE_RIGHT);
  const y = (value) => 12 + ((high - value) / (high - low || 1)) * (base - 12);
  let pen = "M";
  const path = values.map((value, index) => {
    const step = missing(value) ? "" : `${pen}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = missing(value) ? "M" : "L";
    return step;
  }).join("");
  const every = Math.ceil((length * LINE_LABEL) / (wide - LINE_LEFT));
  const peaks = values.map((value, index) => [value, index]).filter(([value]) => DATA.threshold !== null && value >= DATA.threshold);
  const lines = [[0, "zero", "0"], ...(DATA.threshold === null ? [] : [[DATA.threshold, "threshold", asZ(DATA.threshold)]])];
  return svg("svg", { class: "lines", viewBox: `0 0 ${wide} ${LINE_TALL}`, width: wide, height: LINE_TALL, role: "img", "aria-label": `z of ${DATA.nodes[node]} over ${length} tokens, at most ${asZ(Math.max(...judged))}` },
    lines.map(([value, name, words]) => [svg("line", { x1: LINE_LEFT, x2: wide - LINE_RIGHT, y1: y(value), y2: y(value), class: name }), svg("text", { x: LINE_LEFT - 6, y: y(value) + 4, class: "tick", "text-anchor": "end" }, words)]),
    given.generated !== null && given.generated > 0 && given.generated < length ? svg("line", { x1: x(given.generated - 0.5), x2: x(given.generated - 0.5), y1: 8, y2: base + 6, class: "cut" }) : null,
    given.generated !== null && given.generated > 0 && given.generated < length ? svg("text", { x: x(given.generated - 0.5) + 5, y: 12, class: "name" }, "generated ▸") : null,
    svg("path", { d: path || "M0 0", class: "graph" }),
    length <= 80 ? values.map((value, index) => (missing(value) ? null : svg("circle", { cx: x(index), cy: y(value), r: 2, class: "point", "data-z": value }))) : null,
    peaks.map(([value, index]) => [svg("circle", { cx: x(index), cy: y(value), r: 4.5, class: "peak" }), svg("text", { x: clamp(x(index) + 8, 0, wide - 90), y: y(value) + 4, class: "name" }, `${cut(asToken(given.tokens[index]), 14)} ${asZ(value)}`)]),
    token !== null && !missing(values[token]) ? svg("circle", { cx: x(token), cy: y(values[token]), r: 5, class: "at" }) : null,
    given.tokens.map((word, index) => (index % every ? null : svg("text", { class: "tick", transform: `translate(${x(index) - 3} ${base + 10}) rotate(38)` }, cut(asToken(word), 8)))),
    values.map((value, index) => svg("rect", { x: x(index - 0.5), y: 0, width: x(1) - x(0), height: base + 8, class: "hit", onclick: () => choose(index) }, svg("title", {}, `token ${index}, “${asToken(given.tokens[index])}”: z ${asZ(value)}`))));
}
