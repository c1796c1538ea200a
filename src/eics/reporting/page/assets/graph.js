// The parts of which pictures of circuits are made, whatever they show: rows, routes, nodes.

/** The layers behind the nodes, with their names. */
const rowBands = (circuit) => circuit.rows.map(([label, top, bottom]) => svg("g", { class: "row" },
  svg("rect", { x: 4, y: top, width: circuit.width - 8, height: bottom - top, rx: 6 }),
  svg("text", { x: 14, y: (top + bottom) / 2, dy: "0.35em" }, label)));

/** The largest type that fits into the nodes, from 13 pixels, which every node has room for. */
function labelSize(circuit) {
  const [wide, tall] = circuit.box;
  const longest = Math.max(...circuit.nodes.map(([name]) => name.length));
  return clamp(Math.min(0.6 * tall, (wide - 10) / (0.62 * longest)), 13, 18);
}

const routes = new Map();

/** The path of an edge and its upper end, decoded from its first point and its steps. */
function routeOf(edge) {
  if (!routes.has(edge)) {
    const points = [edge[4].slice(0, 2)];
    for (let i = 2; i < edge[4].length; i += 2) points.push([points.at(-1)[0] + edge[4][i], points.at(-1)[1] + edge[4][i + 1]]);
    routes.set(edge, { path: smooth(points), tip: points.at(-1) });
  }
  return routes.get(edge);
}

/** Cubic pieces, vertical at both ends, as `smooth` in eics/reporting/drawing/routes.py: x is a monotone cubic of y. */
function smooth(points) {
  const secants = points.slice(1).map(([x, y], i) => (x - points[i][0]) / (y - points[i][1]));
  const inner = secants.slice(1).map((after, i) => (secants[i] * after <= 0 ? 0 : (2 * secants[i] * after) / (secants[i] + after)));
  const slopes = [0, ...inner, 0];
  const pieces = points.slice(1).map(([x, y], i) => {
    const [x0, y0] = points[i];
    const third = (y - y0) / 3;
    return [x0 + slopes[i] * third, y0 + third, x - slopes[i + 1] * third, y - third, x, y].map((at) => at.toFixed(1)).join(" ");
  });
  return `M${points[0].join(" ")}C${pieces.join(" ")}`;
}

const KINDS = { head: "attention head", mlp: "MLP", input: "embeddings", logits: "read-out" };

/**
 * The marks of a node: a ring, its box, its name, a note below and positions beside it. A ring is the style's own unless
 * it has a width or dashes.
 * @param {{fill?: string, ink?: string, note?: string, ring?: {gap: number, width?: number, dash?: string, name?: string}}} painted
 */
function nodeMarks(circuit, index, painted) {
  const [name, x, y, kind, positions, label] = circuit.nodes[index];
  const [wide, tall] = circuit.box;
  const round = { head: 6, mlp: 0 }[kind] ?? tall / 2;
  const ring = painted.ring;
  return [
    ring ? svg("rect", { x: x - wide / 2 - ring.gap, y: y - tall / 2 - ring.gap, width: wide + 2 * ring.gap, height: tall + 2 * ring.gap, rx: round + ring.gap, class: ring.name ?? "ring", style: { ...(ring.width ? { strokeWidth: `${ring.width}px` } : {}), ...(ring.dash ? { strokeDasharray: ring.dash } : {}) } }) : null,
    svg("rect", { x: x - wide / 2, y: y - tall / 2, width: wide, height: tall, rx: round, style: painted.fill ? { fill: painted.fill } : {} }),
    svg("text", { x, y, dy: "0.35em", style: painted.ink ? { fill: painted.ink } : {} }, label ?? name),
    painted.note ? svg("text", { x, y: y + tall / 2 + (ring ? 11 + ring.gap : 11), class: "note" }, painted.note) : null,
    positions ? svg("text", { x: x + wide / 2 + 3, y, dy: "0.35em", class: "at" }, `@${cut(positions.join(","), 9)}`) : null,
  ];
}
