// dEI over alpha: linear near 0 and logarithmic beyond, so that both the zero and the far ends are visible.

const CURVE = { height: 240, left: 62, right: 14, top: 16, bottom: 40 };
/** Narrow on a phone, where a wide picture would shrink its type. */
const curveWidth = () => (innerWidth < 600 && !onPaper.matches ? 350 : 620);

function drawCurve(record) {
  const grid = DATA.grids[record.curve.grid];
  const { dei } = unpack(record);
  const zeros = record.curve.zeros ?? [];
  const finite = dei.filter((nats) => !Number.isNaN(nats));
  const size = Math.max(...finite.map(Math.abs)) || 1;
  const unit = size / 1000;
  const bend = (nats) => Math.asinh(nats / unit);
  const [low, high] = [Math.min(0, ...finite), Math.max(0, ...finite)].map(bend);
  const { height, left, right, top, bottom } = CURVE;
  const width = curveWidth();
  const [first, last] = [Math.log10(grid[0]), Math.log10(grid.at(-1))];
  const x = (alpha) => left + ((Math.log10(alpha) - first) / (last - first)) * (width - left - right);
  const y = (nats) => top + ((high - bend(nats)) / (high - low || 1)) * (height - top - bottom);
  const path = dei.map((nats, index) => (Number.isNaN(nats) ? "" : `${index && !Number.isNaN(dei[index - 1]) ? "L" : "M"}${x(grid[index]).toFixed(1)} ${y(nats).toFixed(1)}`)).join("");
  const decades = Array.from({ length: Math.floor(last + 1e-9) - Math.ceil(first - 1e-9) + 1 }, (_, index) => Math.ceil(first - 1e-9) + index);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "curve", id: "curve", role: "img", "aria-label": "dEI over alpha" },
    levels(low, high, unit, y).map((nats) => [
      svg("line", { x1: left, x2: width - right, y1: y(nats), y2: y(nats), class: nats ? "gridline" : "zero" }),
      svg("text", { x: left - 7, y: y(nats), dy: "0.35em", class: "tick", "text-anchor": "end" }, text(nats, 1)),
    ]),
    decades.filter((power) => width > 600 || power % 2 === 0).map((power) => svg("text", { x: x(10 ** power), y: height - bottom + 16, class: "tick", "text-anchor": "middle" }, text(10 ** power, 2))),
    svg("text", { x: left + (width - left - right) / 2, y: height - 6, class: "name", "text-anchor": "middle" }, "alpha"),
    svg("path", { d: path, class: "graph" }),
    zeros.filter((zero) => zero >= grid[0] && zero <= grid.at(-1)).map((zero) => svg("g", { class: "crossing" }, svg("circle", { cx: x(zero), cy: y(0), r: 5 }), svg("text", { x: x(zero), y: y(0) - 10, "text-anchor": "middle" }, `0 at ${text(zero, 3)}`))));
  if (!missing(record.alpha) && record.alpha >= grid[0] && record.alpha <= grid.at(-1)) picture.append(chosenAlpha(record, x, y));
  return picture;
}

/** Marks the alpha that was used; its label avoids the curve. */
function chosenAlpha(record, x, y) {
  const { height, top, bottom } = CURVE;
  const width = curveWidth();
  const [at, dei] = [x(record.alpha), value(record, "dei")];
  const side = at > width - 160 ? "end" : "start";
  const below = y(dei) < (top + height - bottom) / 2;
  const dEI = missing(dei) ? "" : `: ${text(dei, 3)} nats`;
  return svg("g", { class: "chosen" },
    svg("line", { x1: at, x2: at, y1: top, y2: height - bottom }), missing(dei) ? null : svg("circle", { cx: at, cy: y(dei), r: 4.5 }),
    svg("text", { x: at + (side === "end" ? -6 : 6), y: below ? height - bottom - 10 : top + 12, "text-anchor": side }, `alpha ${text(record.alpha, 3)}${dEI}`));
}

/** Gridlines at zero and at powers of ten, far enough apart for their labels. */
function levels(low, high, unit, y) {
  const chosen = [0];
  for (let power = 12; power > -12; power--)
    for (const nats of [10 ** power, -(10 ** power)]) {
      const bent = Math.asinh(nats / unit);
      if (bent >= low && bent <= high && chosen.every((level) => Math.abs(y(level) - y(nats)) > 22)) chosen.push(nats);
    }
  return chosen;
}
