// The circuit of one prompt: width shows attribution, colour shows share of inconsistency; the two never mix.

const THIN = 1.1;
const WIDEST = 8;
const PLAIN = 2; // width of every edge without attributions
const RING = 4; // pixels from a suspect to the ring around it
const STEP = 60; // edges drawn in full, and added by "more"

/**
 * Draws the first `limit` edges in full and the others faint; `mark` also draws those that touch the selection. Edges
 * with a share below `prune` are left out, and nodes that lose all their edges fade.
 * @param {{id: string, label: string, limit: number, prune: number, order?: number[], colourOf?: (edge: number) => string,
 *   paint: (node: number) => {fill?: string, ink?: string, note?: string, value?: number, absent?: boolean, suspect?: boolean},
 *   view: {scale: number, x: number, y: number}, moved: () => void}} options
 * @param {{choose: (term: Term|null) => void, hover: (term: Term|null, event?: MouseEvent) => void, selected: () => Term|null}} actions
 */
function drawCircuit(record, options, actions) {
  const circuit = circuitOf(record);
  if (!circuit.nodes.length) return null;
  const lists = unpack(record);
  const order = (options.order ?? edgesByShare(record)).filter((index) => lists.share[index] >= options.prune);
  const visible = new Set(order.slice(0, options.limit));
  const left = new Set(order);
  const counted = new Set(edgesByShare(record));
  const all = [...circuit.edges.keys()];
  const strongest = strongestOf(circuit);
  const width = (index) => (strongest ? THIN + (WIDEST - THIN) * strength(Math.abs(circuit.edges[index][3] ?? 0), strongest) : PLAIN);
  const colourOf = options.colourOf ?? ((index) => heat(strength(lists.share[index], record.most)));
  const edge = (index) => drawEdge(record, index, width(index), colourOf(index), actions);
  const paths = (indices) => indices.map((index) => routeOf(circuit.edges[index]).path).join("") || "M0 0";
  const reached = new Set(order.flatMap((index) => circuit.edges[index].slice(0, 2)));
  const revealed = svg("g", { class: "revealed" });
  const picture = svg("svg", {
    viewBox: `0 0 ${circuit.width} ${circuit.height}`, width: circuit.width, height: circuit.height, class: "circuit", id: options.id, tabindex: -1, role: "group",
    "aria-label": `${options.label} Up and down arrows step through the edges by share, left and right through the nodes.`,
  },
  rowBands(circuit),
  svg("path", { d: paths(all.filter((index) => left.has(index) && !visible.has(index))), class: "faint" }),
  svg("path", { d: paths(options.prune ? [] : all.filter((index) => !counted.has(index))), class: "silent" }),
  // The worst edge comes last, on top.
  svg("g", { class: "edges" }, [...visible].reverse().map(edge)), revealed,
  svg("g", {}, circuit.nodes.map((_, index) => drawNode(record, index, options.paint(index), Boolean(options.prune) && !reached.has(index), actions))));
  picture.style.setProperty("--natural", `${circuit.width}px`);
  picture.style.setProperty("--label", `${labelSize(circuit)}px`);
  const { buttons } = zoomable(picture, circuit.width, circuit.height, options.view, options.moved);
  picture.addEventListener("click", (event) => event.target === picture && actions.choose(null));
  picture.addEventListener("keydown", (event) => walk(event, picture, order, circuit, actions));

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
      const chosen = term?.kind === "node" && term.index === index;
      drawn.classList.toggle("lit", ends.includes(index));
      drawn.classList.toggle("over", hovered?.kind === "node" && hovered.index === index);
      drawn.setAttribute("aria-pressed", String(chosen));
      drawn.setAttribute("tabindex", chosen || (term?.kind !== "node" && index === 0) ? 0 : -1);
    }
  }

  return { picture, mark, buttons, left: order.length, strongest };
}

const strongestOf = (circuit) => Math.max(0, ...circuit.edges.map((edge) => Math.abs(edge[3] ?? 0)));

/** A click selects an edge or node, the mouse over it shows its numbers. */
const handlers = (term, actions) => ({ onclick: () => actions.choose(term), onmousemove: (event) => actions.hover(term, event), onmouseleave: () => actions.hover(null) });

function drawEdge(record, index, width, colour, actions) {
  const circuit = circuitOf(record);
  const { path, tip: [x, y] } = routeOf(circuit.edges[index]);
  const size = 3 + width * 0.7;
  const dashes = circuit.edges[index][3] < 0 ? `${2 + width} ${1.5 + width / 2}` : null;
  const share = unpack(record).share[index];
  return svg("g", { class: "edge", "data-edge": index, "data-share": share, role: "button", tabindex: -1, "aria-label": `edge ${edgeName(circuit, index)}, share ${percent(share)}`, ...handlers({ kind: "edge", index }, actions) },
  svg("path", { d: path, class: "casing", "stroke-width": width + 3 }),
  svg("path", { d: path, class: "line", stroke: colour, "stroke-width": width, "stroke-dasharray": dashes }),
  svg("path", { d: `M${x} ${y}l${-size} ${size * 1.5}h${2 * size}z`, fill: colour, class: "arrow" }),
  svg("path", { d: path, class: "hit" }));
}

function drawNode(record, index, painted, faded, actions) {
  const circuit = circuitOf(record);
  const [name, , , kind] = circuit.nodes[index];
  const share = ofNodes(record, "share")[index];
  const label = [name, KINDS[kind], painted.suspect ? "suspect" : null, missing(share) ? null : `share ${percent(share)}`, painted.note].filter(Boolean).join(", ");
  return svg("g", {
    class: `node ${kind}${faded ? " faded" : ""}${painted.absent ? " absent" : ""}${painted.suspect ? " suspect" : ""}`, "data-node": index, "data-value": painted.value ?? null, role: "button", tabindex: index ? -1 : 0, "aria-label": label, "aria-pressed": "false",
    ...handlers({ kind: "node", index }, actions),
  },
  nodeMarks(circuit, index, { ...painted, ring: painted.suspect ? { gap: RING } : null }));
}

/** Up and down step through the edges by share, left and right through the nodes in the order of computation. */
function walk(event, picture, order, circuit, actions) {
  const steps = { ArrowDown: ["edge", 1], ArrowUp: ["edge", -1], ArrowRight: ["node", 1], ArrowLeft: ["node", -1] };
  if (event.key === "Escape") return actions.choose(null);
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    return event.target.dispatchEvent(new MouseEvent("click"));
  }
  if (!steps[event.key]) return undefined;
  event.preventDefault();
  const [kind, step] = steps[event.key];
  const listed = kind === "edge" ? order : [...circuit.nodes.keys()];
  const selected = actions.selected();
  const at = selected?.kind === kind ? listed.indexOf(selected.index) : step > 0 ? -1 : listed.length;
  const next = listed[clamp(at + step, 0, listed.length - 1)];
  if (next === undefined) return undefined;
  actions.choose({ kind, index: next });
  return picture.querySelector(`[data-${kind}='${next}']`)?.focus();
}

/** What width, dashes and colours mean. Both scales are square roots: the middle is a quarter of the maximum. */
function circuitKey(record, strongest, colours) {
  const ring = record.suspects?.length ? el("div", { class: "scale narrow" }, el("span", { class: "suspect-name" }, "ring"), el("small", {}, "suspect")) : null;
  if (nodesAlone(record)) return el("div", { class: "key" }, colours, ring);
  const wedge = svg("svg", { viewBox: `0 0 120 ${WIDEST}`, class: "wedge", "aria-hidden": "true" }, svg("path", { d: `M0 ${(WIDEST - THIN) / 2}v${THIN}L120 ${WIDEST}V0z` }));
  const widths = strongest
    ? el("div", { class: "scale narrow" }, el("span", {}, "edge width: |attribution|"), wedge, el("small", {}, [0, strongest / 4, strongest].map((at) => el("span", {}, text(at, 3)))))
    : el("div", { class: "scale narrow" }, el("span", {}, "edge width"), el("small", {}, "all equal: the records have no attributions"));
  const dashed = circuitOf(record).edges.some((edge) => edge[3] < 0) ? el("div", { class: "scale narrow" }, el("span", {}, "dashed"), el("small", {}, "negative attribution")) : null;
  return el("div", { class: "key" }, colours, widths, dashed, ring);
}

const edgeKey = (record) => (record.consistent ? el("div", { class: "scale" }, el("b", {}, "Consistent to rounding: no edge is to blame.")) : colourKey("edge colour: share of squared residual", gradient(heat), [0, record.most / 4, record.most].map(percent)));

const LEGIBLE = 26; // pixels of type on a slide

/** On a slide, a circuit too large for readable names keeps the names of its worst nodes alone, as large as needed. */
function enlargeLabels(picture, record) {
  const scale = picture.getScreenCTM()?.a ?? 1;
  if (labelSize(circuitOf(record)) * scale >= LEGIBLE * 0.7) return;
  const bad = badness(record);
  const size = LEGIBLE / scale;
  const taken = [];
  const worst = [...picture.querySelectorAll(".node")].sort((a, b) => (bad[b.dataset.node] || 0) - (bad[a.dataset.node] || 0));
  for (const [rank, node] of worst.entries()) {
    const [name, x, y] = circuitOf(record).nodes[node.dataset.node];
    const [label, ...others] = node.querySelectorAll("text");
    for (const note of others) note.style.display = "none";
    const free = rank < 5 && taken.every(([left, top]) => Math.abs(left - x) > size * 0.6 * name.length || Math.abs(top - y) > size * 1.1);
    if (free) taken.push([x, y]);
    node.classList.toggle("named", free);
    Object.assign(label.style, free ? { fontSize: `${size}px` } : { display: "none" });
  }
}

/** Scrolls a picture that is wider than its frame sideways, so that the given node or the worst one is in the middle. */
function centre(picture, record, index) {
  const frame = picture.parentElement;
  const bad = badness(record);
  const at = index ?? [...bad.keys()].reduce((best, node) => ((bad[node] || 0) > (bad[best] || 0) ? node : best), 0);
  frame.scrollLeft = (circuitOf(record).nodes[at][1] / circuitOf(record).width) * picture.getBoundingClientRect().width - frame.clientWidth / 2;
}
