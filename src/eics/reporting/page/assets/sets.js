// Two sets of prompts: which nodes are shifted, where the difference enters, and how z is distributed in both.

const FIRST = { node: DATA.nodes[0]?.node ?? "", prompt: "", find: "", role: "", sort: "", prompts: "", set: "", "prompts-sort": "", zoom: "" };
const state = { ...FIRST };
const view = { scale: 1, x: 0, y: 0 };
const NODES = new Map(DATA.nodes.map((node) => [node.node, node]));
const AT = new Map(DATA.nodes.map(({ node }, index) => [node, index]));
const PROMPTS = DATA.prompts.map((prompt) => ({ ...prompt, key: `${prompt.set}-${prompt.id}`, zs: null }));
const ROLES = { entry: "entry", inherits: "inherits", none: "no role", unjudged: "not judged" };
const ROLE_WORDS = { entry: "unusual for what it reads: the difference enters here", inherits: "differs as its inputs predict", none: "no difference at this level", unjudged: "not judged" };
const roleOf = (node) => node.role ?? (missing(node.shift?.[0]) ? "unjudged" : "none");
const MOST = Math.max(0, ...DATA.nodes.map((node) => Math.abs(node.shift?.[0] ?? 0)));
const number = (given) => text(given, 3);
const signed = (given) => (missing(given) ? "–" : given > 0 ? `▲ ${tidy(given.toFixed(2))}` : given < 0 ? `▼ ${tidy((-given).toFixed(2))}` : "0");
const RING_OUT = 4;

let drawing = null;
let nodesSheet = null;
let promptsSheet = null;

/** z of a node on a prompt; unpacked on first use. */
function zOf(prompt, name = state.node) {
  prompt.zs ??= unpackZ(prompt.z, prompt.far);
  return prompt.zs[AT.get(name)] ?? NaN;
}

function saveView() {
  state.zoom = viewKey(view) ?? "";
  saveState(state, FIRST);
}

function chooseNode(name) {
  state.node = name;
  drawing.mark();
  nodesSheet.mark();
  promptsSheet.build(promptColumns());
  showNode();
  saveView();
  announce(name ? nodeWords(name) : "Nothing is selected.");
}

function choosePrompt(prompt) {
  state.prompt = prompt.key;
  promptsSheet.mark();
  showNode();
  saveView();
  announce(`Prompt ${prompt.id} of set ${prompt.set.toUpperCase()}, z ${asZ(zOf(prompt))}`);
}

function nodeWords(name) {
  const node = NODES.get(name);
  return node ? `${name}, ${KIND_NAMES[node.kind]}, ${ROLES[roleOf(node)]}${missing(node.shift?.[0]) ? "" : `, shift ${asZ(node.shift[0])}`}` : `${name}, not in the document`;
}

const roleMark = (node) => (node.role ? el("span", { class: `role-name ${node.role}` }, node.role) : el("span", { class: "dim" }, ROLES[roleOf(node)]));

function describeNode(name) {
  const node = NODES.get(name);
  if (!node) return [el("b", {}, name), el("p", {}, "The document has no numbers for it.")];
  return [
    el("b", {}, name), " ", el("span", { class: "dim" }, KIND_NAMES[node.kind]), " ", roleMark(node), el("p", { class: "dim" }, node.reason ? `Not judged: ${node.reason}.` : `${ROLE_WORDS[roleOf(node)]}.`),
    detailList([
      ["shift of z, B − A", estimate(node.shift, asZ)], ["p", number(node.p)], ["q", number(node.q)], ["shift of the write", estimate(node.write, asZ)], ["q of the write", number(node.write_q)], ["r²", missing(node.r2) ? "–" : tidy(node.r2.toFixed(2))],
    ]),
  ];
}

function paintNode(name) {
  const node = NODES.get(name);
  const shift = node?.shift?.[0];
  const ring = node?.role ? { gap: RING_OUT, name: `role ${node.role}` } : null;
  if (!node || missing(shift)) return { absent: true, ring };
  const colour = away(MOST ? shift / MOST : 0);
  return { fill: colour, ink: inkOn(colour), ring, note: !DATA.graph.grid && (node.role || Math.abs(shift) >= 0.5 * MOST) ? signed(shift) : null };
}

function setsKey() {
  const swatch = (name, words) => el("span", { class: "swatch" }, svg("svg", { viewBox: "0 0 26 16", width: 26, height: 16, "aria-hidden": "true" }, svg("rect", { x: 4, y: 3, width: 18, height: 10, rx: 3, class: name })), words);
  return el("div", { class: "key" },
    MOST ? colourKey("colour: shift of z, B − A", gradient(away, -1), [`▼ ${asZ(MOST)}`, "0", `▲ ${asZ(MOST)}`]) : el("b", {}, "No node is shifted."),
    el("div", { class: "swatches" }, swatch("role", "entry: the difference enters here"), swatch("role inherits", "inherits: as its inputs predict"), swatch("plain absent", "not judged")));
}

/** The numbers of the selected node and its distribution. */
function showNode() {
  const having = (set) => PROMPTS.filter((prompt) => prompt.set === set && !missing(zOf(prompt)));
  const [a, b] = [having("a"), having("b")];
  byId("part").replaceChildren(...(state.node ? describeNode(state.node) : [el("h3", { class: "hint" }, "The selected node"), el("p", { class: "dim hint" }, "Select a node in the picture or in the table to see its numbers and how its z is distributed in both sets.")]).flat(9).filter(Boolean));
  byId("distribution").replaceChildren(...(state.node && a.length + b.length ? [
    el("h3", {}, `z of ${state.node} in both sets`), el("p", { class: "legend" }, ["a", "b"].map((set, row) => el("span", { class: "label" }, el("i", { style: { background: labelColour(row) } }), `${set.toUpperCase()}: ${DATA.sets[set].name}, ${[a, b][row].length} prompts`))),
    drawStrips({ a, b, of: (prompt) => zOf(prompt), chosen: state.prompt, choose: choosePrompt, name: state.node }), el("p", { class: "dim" }, "Line: mean. Dashed: 0, the mean of the calibration.")] : [el("h3", { class: "hint" }, "z in both sets"), el("p", { class: "dim hint" }, state.node ? "No prompt has a z of this node." : "Select a node first.")]));
}

function renderView() {
  drawing = drawNodes(DATA.graph, { label: "The circuit.", view, moved: saveView, paint: paintNode, words: nodeWords, tip: describeNode, choose: chooseNode, chosen: () => state.node });
  const caption = `Shift of z: ${DATA.sets.b.name} minus ${DATA.sets.a.name}`;
  byId("view").replaceChildren(el("h2", {}, "Where the sets part"),
    el("div", { class: "columns one" },
      el("div", { class: "card" }, el("h3", {}, "The circuit"), el("div", { class: "tools" }, drawing.buttons, exportButtons(drawing.picture, caption, slug(caption))), setsKey(), drawing.framed),
      el("div", { class: "stack beside" }, el("div", { class: "card detail", id: "part", role: "status" }), el("div", { class: "card", id: "distribution" }))));
}

function renderNodes() {
  const present = Object.keys(ROLES).filter((role) => DATA.nodes.some((node) => roleOf(node) === role));
  const numbers = (name, of, title) => ({ name, title, number: true, of, show: (node) => number(of(node)) });
  nodesSheet = makeSheet({
    caption: "Nodes", state, sort: "sort", rows: DATA.nodes, noun: "nodes", none: "No node fits these filters.", saved: saveView, key: (node) => node.node, chosen: () => state.node, choose: (node) => chooseNode(node.node),
    keep: (node) => matches(state.find, node.node) && (!state.role || roleOf(node) === state.role),
    controls: (changed) => [searchBox({ id: "find", name: "find", hint: "m3, a2.h1 …", state, changed }), choiceBox({ id: "role", label: "role", name: "role", state, changed, choices: present.map((role) => [role, ROLES[role]]) })],
    columns: [
      { name: "node", of: (node) => node.node, show: (node) => el("b", {}, node.node) },
      { name: "role", of: (node) => Object.keys(ROLES).indexOf(roleOf(node)), show: roleMark },
      estimateColumn("shift of z", (node) => node.shift, "mean z over B minus over A", asZ), numbers("p", (node) => node.p, "that z is distributed alike in both sets"), numbers("q", (node) => node.q, "false discovery rate over the judged nodes"),
      estimateColumn("write shift", (node) => node.write, "of the whitened write, in standard deviations of A", asZ), numbers("write q", (node) => node.write_q, "false discovery rate of the write"),
      { name: "r²", title: "how much of its write its inputs predict", number: true, of: (node) => node.r2, show: (node) => (missing(node.r2) ? "–" : tidy(node.r2.toFixed(2))) },
      DATA.nodes.some((node) => node.reason) ? { name: "not judged because", wide: true, of: (node) => node.reason ?? null, show: (node) => el("span", { class: "dim" }, node.reason ?? "") } : null,
    ].filter(Boolean),
  });
  byId("parts").replaceChildren(el("h2", {}, "Every node"), el("div", { class: "card" }, nodesSheet.element));
}

function promptColumns() {
  return [
    { name: "set", of: (prompt) => prompt.set, show: (prompt) => el("span", {}, el("i", { class: "set-mark", style: { background: labelColour(prompt.set === "a" ? 0 : 1) } }), prompt.set.toUpperCase()) },
    { name: "prompt", wide: true, of: (prompt) => prompt.id, show: (prompt) => el("div", { class: "clamped" }, el("b", {}, cut(prompt.id, 40)), " ", el("span", { class: "dim" }, cut(prompt.prompt ?? "", 110))) },
    PROMPTS.some((prompt) => prompt.group !== null) ? { name: "group", of: (prompt) => prompt.group, show: (prompt) => cut(prompt.group ?? "–", 24) } : null,
    state.node ? { name: `z of ${state.node}`, number: true, of: (prompt) => zOf(prompt), show: (prompt) => el("span", { "data-z": zOf(prompt) }, asZ(zOf(prompt))) } : null,
  ].filter(Boolean);
}

function renderPrompts() {
  promptsSheet = makeSheet({
    caption: "Prompts of both sets", state, sort: "prompts-sort", rows: PROMPTS, noun: "prompts", none: PROMPTS.length ? "No prompt fits these filters." : "The document has no prompts.", saved: saveView, key: (prompt) => prompt.key, chosen: () => state.prompt, choose: choosePrompt,
    keep: (prompt) => matches(state.prompts, `${prompt.id} ${prompt.prompt ?? ""} ${prompt.group ?? ""}`) && (!state.set || prompt.set === state.set),
    controls: (changed) => [searchBox({ id: "find-prompt", name: "prompts", hint: "id, text, group …", state, changed }), choiceBox({ id: "set", label: "set", name: "set", state, changed, choices: ["a", "b"].map((set) => [set, `${set.toUpperCase()}: ${cut(DATA.sets[set].name, 30)}`]) })],
    columns: promptColumns(),
  });
  byId("texts").replaceChildren(el("h2", {}, "Prompts of both sets"), el("div", { class: "card" }, promptsSheet.element));
}

/** How many prompts of each set count. */
function setsTable() {
  const counts = ["prompts", "compared", "groups", "failed"];
  return el("table", { class: "sets" }, el("caption", { class: "unseen" }, "The two sets"), el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "set"), counts.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ["a", "b"].map((set, row) => el("tr", {}, el("th", { scope: "row" }, el("i", { class: "set-mark", style: { background: labelColour(row) } }), el("b", {}, set.toUpperCase()), ` ${DATA.sets[set].name}`), counts.map((name) => el("td", {}, String(DATA.sets[set][name])))))));
}

function render() {
  renderFound(setsTable());
  renderView();
  renderNodes();
  renderPrompts();
  drawing.mark();
  drawing.centre(state.node);
  showNode();
}

startStudy({ first: FIRST, state, keys: NODE_KEYS, draw: render, clean() {
  if (!NODES.has(state.node)) state.node = state.node === "" ? "" : FIRST.node;
  if (!PROMPTS.some((prompt) => prompt.key === state.prompt)) state.prompt = "";
  if (!Object.hasOwn(ROLES, state.role)) state.role = "";
  if (!Object.hasOwn(DATA.sets, state.set)) state.set = "";
  Object.assign(view, viewAt(state.zoom));
} });
