// A circuit, or a grid of parts, of which the nodes carry the numbers; the edges of the chosen node light up.

const KIND_NAMES = { ...KINDS, bias: "attention bias", other: "part" };
const NODE_KEYS = [["← →", "in the picture: nodes in the order of computation"], ["↑ ↓", "in the picture: the node above or below"], ["+ − 0", "in the picture: zoom in, out, whole picture"], ["Shift + arrows", "in the picture: pan"], ["Esc", "in the picture: deselect"]];

/**
 * @param {{label: string, view: Object, moved: () => void, paint: (name: string) => Object, words: (name: string) => string,
 *   tip: (name: string) => any[], choose: (name: string) => void, chosen: () => string}} options
 */
function drawNodes(graph, options) {
  const lit = svg("path", { class: "lit-edges" });
  const nodes = graph.nodes.map(([name], index) => drawn(name, index));
  const picture = svg("svg", {
    viewBox: `0 0 ${graph.width} ${graph.height}`, width: graph.width, height: graph.height, class: `circuit${graph.grid ? " parts-grid" : ""}`, id: "circuit", tabindex: -1, role: "group",
    "aria-label": `${options.label} Arrow keys step through the nodes.`,
  }, rowBands(graph), svg("path", { d: graph.edges.map((edge) => routeOf(edge).path).join("") || "M0 0", class: "faint" }), lit, svg("g", {}, nodes));
  picture.style.setProperty("--natural", `${graph.width}px`);
  picture.style.setProperty("--label", `${graph.grid ? 10 : labelSize(graph)}px`);
  const { buttons } = zoomable(picture, graph.width, graph.height, options.view, options.moved);
  picture.addEventListener("click", (event) => event.target === picture && options.choose(""));
  picture.addEventListener("keydown", walkNodes);

  function drawn(name, index) {
    const painted = options.paint(name);
    return svg("g", {
      class: `node ${graph.nodes[index][3]}${painted.absent ? " absent" : ""}`, "data-node": name, role: "button", tabindex: index ? -1 : 0, "aria-pressed": "false", "aria-label": options.words(name),
      onclick: () => options.choose(name), onmousemove: (event) => showTip(options.tip(name), event), onmouseleave: () => showTip(null),
    }, nodeMarks(graph, index, painted));
  }

  function walkNodes(event) {
    if (event.key === "Escape") return options.choose("");
    const at = nodes.indexOf(event.target.closest(".node"));
    if (at >= 0 && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      return options.choose(graph.nodes[at][0]);
    }
    const from = at >= 0 ? at : graph.nodes.findIndex(([name]) => name === options.chosen());
    const next = { ArrowRight: from + 1, ArrowLeft: from - 1, ArrowUp: beyond(from, -1), ArrowDown: beyond(from, 1) }[event.key];
    if (next === undefined) return undefined;
    event.preventDefault();
    const index = clamp(next, 0, nodes.length - 1);
    options.choose(graph.nodes[index][0]);
    return nodes[index]?.focus();
  }

  /** The nearest node in the next row up or down. */
  function beyond(from, side) {
    const [, x, y] = graph.nodes[Math.max(from, 0)];
    const ahead = [...graph.nodes.keys()].filter((index) => side * (graph.nodes[index][2] - y) > 1);
    const far = (index) => 3 * Math.abs(graph.nodes[index][2] - y) + Math.abs(graph.nodes[index][1] - x);
    return ahead.reduce((best, index) => (far(index) < far(best) ? index : best), ahead[0] ?? from);
  }

  /** Lights up the chosen node with its edges; it is where the keyboard enters the picture. */
  function mark() {
    const chosen = options.chosen();
    const index = graph.nodes.findIndex(([name]) => name === chosen);
    for (const [at, node] of nodes.entries()) {
      node.classList.toggle("lit", at === index);
      node.setAttribute("aria-pressed", String(at === index));
      node.setAttribute("tabindex", at === Math.max(index, 0) ? 0 : -1);
    }
    lit.setAttribute("d", graph.edges.filter((edge) => index >= 0 && edge.slice(0, 2).includes(index)).map((edge) => routeOf(edge).path).join("") || "M0 0");
  }

  /** Scrolls a picture that is wider than its frame until a node is in the middle. */
  function centre(name) {
    const found = graph.nodes.find(([one]) => one === name);
    const frame = picture.parentElement;
    if (found && frame) frame.scrollLeft = (found[1] / graph.width) * picture.getBoundingClientRect().width - frame.clientWidth / 2;
  }

  const framed = graph.nodes.length ? el("div", { class: "picture" }, picture) : el("p", { class: "empty" }, "The document has no nodes.");
  return { picture, framed, mark, buttons, centre };
}
