// The circuit of one prompt: width by attribution, colour by share of inconsistency, the two never mixed.

const THIN = 1.1;
const WIDEST = 7.5;
const PLAIN = 2;
const STEP = 150;

/** @param {{choose: (term: Term|null) => void, hover: (term: Term|null, event?: MouseEvent) => void}} actions */
function drawCircuit(record, limit, actions) {
  const circuit = circuitOf(record);
  if (!circuit.nodes.length) return null;
  const lists = unpack(record);
  const order = edgesByShare(record);
  const visible = order.slice(0, limit);
  const largest = Math.max(0, ...order.map((index) => lists.share[index])) || 1;
  const strongest = Math.max(0, ...circuit.edges.map((edge) => Math.abs(edge[3] ?? 0)));
  const width = (index) => (strongest ? THIN + (WIDEST - THIN) * (Math.abs(circuit.edges[index][3] ?? 0) / strongest) : PLAIN);
  const picture = svg("svg", {
    viewBox: `0 0 ${circuit.width} ${circuit.height}`, width: circuit.width, height: circuit.height, class: "circuit", id: "circuit", tabindex: 0, role: "application", style: { minWidth: `${Math.round(circuit.width * 0.55)}px` },
    "aria-label": "The circuit. Up and down walk through the edges by share, left and right through the nodes.",
  });
  picture.addEventListener("click", (event) => event.target === picture && actions.choose(null));
  picture.append(...circuit.rows.map(([label, top, bottom]) => svg("g", { class: "row" },
    svg("rect", { x: 4, y: top, width: circuit.width - 8, height: bottom - top, rx: 6 }),
    svg("text", { x: 14, y: (top + bottom) / 2, dy: "0.35em" }, label))));
  const carries = new Set(order);
  const faint = circuit.edges.map((edge, index) => (visible.includes(index) || !carries.has(index) ? "" : edge[4])).join("");
  const silent = circuit.edges.map((edge, index) => (carries.has(index) ? "" : edge[4])).join("");
  picture.append(svg("path", { d: faint || "M0 0", class: "faint" }), svg("path", { d: silent || "M0 0", class: "silent" }));
  const edges = svg("g", {});
  // The worst edge is drawn last, on top.
  for (const index of [...visible].reverse()) edges.append(drawEdge(circuit, index, width(index), heat(lists.share[index] / largest), actions));
  const nodes = svg("g", {});
  const most = Math.max(0, ...lists.nodeShare.filter((share) => !Number.isNaN(share)));
  for (const index of circuit.nodes.keys()) nodes.append(drawNode(circuit, index, lists.nodeShare[index], most, actions));
  picture.append(edges, nodes);
  picture.addEventListener("keydown", (event) => walk(event, visible, circuit, actions));
  return { picture, visible, order, largest, strongest, most };
}

function drawEdge(circuit, index, width, colour, actions) {
  const [, , , attribution, path] = circuit.edges[index];
  const [x, y] = path.split(/[ MC]+/).slice(-2).map(Number);
  const size = 3.2 + width * 0.75;
  const term = { kind: "edge", index };
  return svg("g", {
    class: "edge", "data-edge": index,
    onclick: () => actions.choose(term), onmousemove: (event) => actions.hover(term, event), onmouseleave: () => actions.hover(null),
  },
  svg("path", { d: path, class: "casing", "stroke-width": width + 3 }),
  svg("path", { d: path, class: "line", stroke: colour, "stroke-width": width, "stroke-dasharray": attribution < 0 ? `${2 + width} ${1.5 + width / 2}` : null }),
  svg("path", { d: `M${x} ${y}l${-size} ${size * 1.5}h${2 * size}z`, fill: colour, class: "arrow" }),
  svg("path", { d: path, class: "hit" }));
}

function drawNode(circuit, index, share, most, actions) {
  const [name, x, y, kind, positions] = circuit.nodes[index];
  const [wide, tall] = circuit.box;
  const filled = !Number.isNaN(share ?? NaN) && most > 0;
  const part = filled ? Math.max(0, share) / most : 0;
  const term = { kind: "node", index };
  const round = { head: 6, mlp: 0 }[kind] ?? tall / 2;
  return svg("g", {
    class: `node ${kind}`, "data-node": index,
    onclick: () => actions.choose(term), onmousemove: (event) => actions.hover(term, event), onmouseleave: () => actions.hover(null),
  },
  svg("rect", { x: x - wide / 2, y: y - tall / 2, width: wide, height: tall, rx: round, style: filled ? { fill: heat(part) } : {} }),
  svg("text", { x, y, dy: "0.35em", style: filled ? { fill: onHeat(part) } : {} }, name),
  positions ? svg("text", { x: x + wide / 2 + 3, y, dy: "0.35em", class: "at" }, `@${cut(positions.join(","), 9)}`) : null);
}

/** Up and down go through the edges by share, left and right through the nodes in the order of computation. */
function walk(event, visible, circuit, actions) {
  const steps = { ArrowDown: ["edge", 1], ArrowUp: ["edge", -1], ArrowRight: ["node", 1], ArrowLeft: ["node", -1] };
  if (event.key === "Escape") return actions.choose(null);
  if (!steps[event.key]) return undefined;
  event.preventDefault();
  const [kind, step] = steps[event.key];
  const listed = kind === "edge" ? visible : [...circuit.nodes.keys()];
  const selected = actions.selected();
  const at = selected?.kind === kind ? listed.indexOf(selected.index) : step > 0 ? -1 : listed.length;
  const next = listed[clamp(at + step, 0, listed.length - 1)];
  return next === undefined ? undefined : actions.choose({ kind, index: next });
}

/** Shows what is chosen or under the mouse: a node lights up with its edges. */
function markCircuit(record, term, hovered) {
  const picture = byId("circuit");
  if (!picture) return;
  const circuit = circuitOf(record);
  const lit = term || hovered;
  picture.classList.toggle("choosing", Boolean(term));
  const touches = (index) => lit && (lit.kind === "edge" ? lit.index === index : circuit.edges[index].slice(0, 2).includes(lit.index));
  for (const edge of picture.querySelectorAll(".edge")) {
    const index = Number(edge.dataset.edge);
    edge.classList.toggle("lit", Boolean(touches(index)));
    edge.classList.toggle("over", hovered?.kind === "edge" && hovered.index === index);
  }
  const ends = lit?.kind === "edge" ? circuit.edges[lit.index].slice(0, 2) : [];
  for (const node of picture.querySelectorAll(".node")) {
    const index = Number(node.dataset.node);
    node.classList.toggle("lit", (lit?.kind === "node" && lit.index === index) || ends.includes(index));
    node.classList.toggle("over", hovered?.kind === "node" && hovered.index === index);
  }
}

function circuitKey(drawn, record) {
  const steps = [0, 0.25, 0.5, 0.75, 1];
  const gradient = `linear-gradient(90deg, ${steps.map((part) => heat(part)).join(", ")})`;
  const scale = (title, most) => el("div", { class: "scale" }, el("span", {}, title), el("i", { style: { background: gradient } }), el("small", {}, el("span", {}, "0"), el("span", {}, percent(most))));
  const widths = drawn.strongest
    ? el("div", { class: "scale" }, el("span", {}, "edge width: |attribution|"), svg("svg", { viewBox: "0 0 120 10", class: "wedge" }, svg("path", { d: "M0 5.5L120 9V1L0 4.5z" })), el("small", {}, el("span", {}, "0"), el("span", {}, text(drawn.strongest, 3))))
    : el("div", { class: "scale" }, el("span", {}, "edge width"), el("small", {}, "the records hold no attribution: all equal"));
  const dashed = circuitOf(record).edges.some((edge) => edge[3] < 0) ? el("div", { class: "scale" }, el("small", {}, "dashed: negative attribution")) : null;
  return el("div", { class: "key" },
    record.consistent ? el("div", { class: "scale" }, el("b", {}, "Consistent to rounding: there is nothing to share.")) : scale("edge colour: share of squared residual", drawn.largest),
    drawn.most > 0 ? scale("node colour: share of C_sh", drawn.most) : null, widths, dashed);
}
