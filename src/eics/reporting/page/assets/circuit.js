// The circuit of one prompt: width shows attribution, colour shows share of inconsistency; the two never mix.

const THIN = 1.1;
const WIDEST = 8;
const PLAIN = 2; // width of every edge without attributions
const STEP = 60; // edges drawn in full, and added by "more"

/**
 * Draws the worst `limit` edges in full and the others faint; `mark` also draws those that touch the selection.
 * @param {{choose: (term: Term|null) => void, hover: (term: Term|null, event?: MouseEvent) => void}} actions
 */
function drawCircuit(record, limit, actions) {
  const circuit = circuitOf(record);
  if (!circuit.nodes.length) return null;
  const lists = unpack(record);
  const order = edgesByShare(record);
  const visible = new Set(order.slice(0, limit));
  const counted = new Set(order);
  const all = [...circuit.edges.keys()];
  const strongest = Math.max(0, ...circuit.edges.map((edge) => Math.abs(edge[3] ?? 0)));
  const mostOfNode = Math.max(0, ...lists.nodeShare.filter((share) => !Number.isNaN(share)));
  const width = (index) => (strongest ? THIN + (WIDEST - THIN) * strength(Math.abs(circuit.edges[index][3] ?? 0), strongest) : PLAIN);
  const edge = (index) => drawEdge(circuit, index, width(index), heat(strength(lists.share[index], record.most)), actions);
  const paths = (indices) => indices.map((index) => routeOf(circuit.edges[index]).path).join("") || "M0 0";
  const revealed = svg("g", { class: "revealed" });
  const picture = svg("svg", {
    viewBox: `0 0 ${circuit.width} ${circuit.height}`, width: circuit.width, height: circuit.height, class: "circuit", id: "circuit", tabindex: 0, role: "application", style: { minWidth: `${Math.round(circuit.width * 0.55)}px` },
    "aria-label": "The circuit. Up and down arrows step through the edges by share, left and right through the nodes.",
  },
  circuit.rows.map(([label, top, bottom]) => svg("g", { class: "row" },
    svg("rect", { x: 4, y: top, width: circuit.width - 8, height: bottom - top, rx: 6 }),
    svg("text", { x: 14, y: (top + bottom) / 2, dy: "0.35em" }, label))),
  svg("path", { d: paths(all.filter((index) => counted.has(index) && !visible.has(index))), class: "faint" }),
  svg("path", { d: paths(all.filter((index) => !counted.has(index))), class: "silent" }),
  // The worst edge comes last, on top.
  svg("g", { class: "edges" }, [...visible].reverse().map(edge)), revealed,
  svg("g", {}, circuit.nodes.map((_, index) => drawNode(circuit, index, lists.nodeShare[index], mostOfNode, actions))));
  picture.addEventListener("click", (event) => event.target === picture && actions.choose(null));
  picture.addEventListener("keydown", (event) => walk(event, order, circuit, actions));

  /** Highlights the selection or what is under the mouse; a node lights up with all its edges. */
  function mark(term, hovered) {
    const lit = term || hovered;
    const touches = (index) => Boolean(lit) && (lit.kind === "edge" ? lit.index === index : circuit.edges[index].slice(0, 2).includes(lit.index));
    revealed.replaceChildren(...order.filter((index) => !visible.has(index) && touches(index)).reverse().map(edge));
    picture.classList.toggle("choosing", Boolean(term));
    for (const drawn of picture.querySelectorAll(".edge")) {
      const index = Number(drawn.dataset.edge);
      drawn.classList.toggle("lit", touches(index));
      drawn.classList.toggle("over", hovered?.kind === "edge" && hovered.index === index);
    }
    const ends = lit?.kind === "edge" ? circuit.edges[lit.index].slice(0, 2) : [lit?.index];
    for (const drawn of picture.querySelectorAll(".node")) {
      const index = Number(drawn.dataset.node);
      drawn.classList.toggle("lit", ends.includes(index));
      drawn.classList.toggle("over", hovered?.kind === "node" && hovered.index === index);
    }
  }

  return { picture, key: circuitKey(record, strongest, mostOfNode), mark };
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

/** A click selects an edge or node, the mouse over it shows its numbers. */
const handlers = (term, actions) => ({ onclick: () => actions.choose(term), onmousemove: (event) => actions.hover(term, event), onmouseleave: () => actions.hover(null) });

function drawEdge(circuit, index, width, colour, actions) {
  const { path, tip: [x, y] } = routeOf(circuit.edges[index]);
  const size = 3 + width * 0.7;
  const dashes = circuit.edges[index][3] < 0 ? `${2 + width} ${1.5 + width / 2}` : null;
  return svg("g", { class: "edge", "data-edge": index, ...handlers({ kind: "edge", index }, actions) },
  svg("path", { d: path, class: "casing", "stroke-width": width + 3 }),
  svg("path", { d: path, class: "line", stroke: colour, "stroke-width": width, "stroke-dasharray": dashes }),
  svg("path", { d: `M${x} ${y}l${-size} ${size * 1.5}h${2 * size}z`, fill: colour, class: "arrow" }),
  svg("path", { d: path, class: "hit" }));
}

function drawNode(circuit, index, share, most, actions) {
  const [name, x, y, kind, positions] = circuit.nodes[index];
  const [wide, tall] = circuit.box;
  const filled = !missing(share) && most > 0;
  const part = strength(share, most);
  const round = { head: 6, mlp: 0 }[kind] ?? tall / 2;
  return svg("g", { class: `node ${kind}`, "data-node": index, ...handlers({ kind: "node", index }, actions) },
  svg("rect", { x: x - wide / 2, y: y - tall / 2, width: wide, height: tall, rx: round, style: filled ? { fill: heat(part) } : {} }),
  svg("text", { x, y, dy: "0.35em", style: filled ? { fill: onHeat(part) } : {} }, name),
  positions ? svg("text", { x: x + wide / 2 + 3, y, dy: "0.35em", class: "at" }, `@${cut(positions.join(","), 9)}`) : null);
}

/** Up and down step through the edges by share, left and right through the nodes in the order of computation. */
function walk(event, order, circuit, actions) {
  const steps = { ArrowDown: ["edge", 1], ArrowUp: ["edge", -1], ArrowRight: ["node", 1], ArrowLeft: ["node", -1] };
  if (event.key === "Escape") return actions.choose(null);
  if (!steps[event.key]) return undefined;
  event.preventDefault();
  const [kind, step] = steps[event.key];
  const listed = kind === "edge" ? order : [...circuit.nodes.keys()];
  const selected = actions.selected();
  const at = selected?.kind === kind ? listed.indexOf(selected.index) : step > 0 ? -1 : listed.length;
  const next = listed[clamp(at + step, 0, listed.length - 1)];
  return next === undefined ? undefined : actions.choose({ kind, index: next });
}

/** What width, dashes and colours mean. Both scales are square roots: the middle is a quarter of the maximum. */
function circuitKey(record, strongest, mostOfNode) {
  const gradient = `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map((part) => heat(part)).join(", ")})`;
  const ends = (most, show) => el("small", {}, [0, most / 4, most].map((at) => el("span", {}, show(at))));
  const colours = (title, most) => el("div", { class: "scale" }, el("span", {}, title), el("i", { style: { background: gradient } }), ends(most, percent));
  const wedge = svg("svg", { viewBox: `0 0 120 ${WIDEST}`, class: "wedge" }, svg("path", { d: `M0 ${(WIDEST - THIN) / 2}v${THIN}L120 ${WIDEST}V0z` }));
  const widths = strongest
    ? el("div", { class: "scale" }, el("span", {}, "edge width: |attribution|"), wedge, ends(strongest, (at) => text(at, 3)))
    : el("div", { class: "scale" }, el("span", {}, "edge width"), el("small", {}, "all equal: the records have no attributions"));
  const dashed = circuitOf(record).edges.some((edge) => edge[3] < 0) ? el("div", { class: "scale" }, el("span", {}, "dashed"), el("small", {}, "negative attribution")) : null;
  return el("div", { class: "key" },
    record.consistent ? el("div", { class: "scale" }, el("b", {}, "Consistent to rounding: no edge is to blame.")) : colours("edge colour: share of squared residual", record.most),
    mostOfNode > 0 ? colours("node colour: share of C_sh", mostOfNode) : null, widths, dashed);
}
