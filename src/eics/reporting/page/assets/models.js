// Two models side by side with the circuit between them: what was made where, and which prompts it moves.

const FIRST = { node: "", prompt: "", find: "", kind: "", made: false, sort: "-effect", prompts: "", touched: false, "prompts-sort": "-total", zoom: "" };
const state = { ...FIRST };
const view = { scale: 1, x: 0, y: 0 };
const NODES = new Map(DATA.nodes.map((node) => [node.node, node]));
const PROMPTS = new Map(DATA.prompts.map((prompt) => [prompt.id, prompt]));
const ANSWERS = 7; // of each model, beside the picture
const CHIPS = 2; // effects in the table of prompts
const BARS = 10; // effects in the card of a prompt
const [METRIC] = DATA.metric;
const words = (prompt) => prompt.prompt ?? "";
const number = (given) => text(given, 3);
const effectOn = (prompt, name) => prompt.effects.find(([node]) => node === name)?.[1];
const BY_TOTAL = [...DATA.prompts].sort((a, b) => Math.abs(b.total ?? 0) - Math.abs(a.total ?? 0));
const BY_EFFECT = [...DATA.nodes].sort((a, b) => Math.abs(b.effect?.[0] ?? 0) - Math.abs(a.effect?.[0] ?? 0));

let drawing = null;
let partsSheet = null;
let promptsSheet = null;

function saveView() {
  state.zoom = viewKey(view) ?? "";
  saveState(state, FIRST);
}

function chooseNode(name) {
  state.node = name;
  drawing.mark();
  partsSheet.mark();
  promptsSheet.build(promptColumns());
  showCards();
  saveView();
  announce(name ? partWords(name) : "Nothing is selected.");
}

function choosePrompt(id) {
  state.prompt = id;
  promptsSheet.mark();
  showCards();
  saveView();
  if (id) announce(`Prompt ${id}`);
}

function partWords(name) {
  const node = NODES.get(name);
  if (!node) return `${name}, not in the document`;
  return `${name}, ${KIND_NAMES[node.kind]}, made here ${number(node.made)}, effect ${number(node.effect?.[0])}`;
}

function describePart(name) {
  const node = NODES.get(name);
  if (!node) return [el("b", {}, name), el("p", {}, "The document has no numbers for it.")];
  return [el("b", {}, name), " ", el("span", { class: "dim" }, KIND_NAMES[node.kind]), detailList([
    ["made here", number(node.made)], ["inherited", number(node.inherited)], [`effect on ${METRIC}`, estimate(node.effect)],
    node.restored ? ["truly restored", estimate(node.restored)] : null, ["share of the change", percent(node.share)],
  ])];
}

/** One of the two models with its answers; those of both stand side by side, line by line. */
function modelCard(side, model) {
  const chosen = PROMPTS.get(state.prompt);
  const listed = BY_TOTAL.filter((prompt) => prompt.before !== null || prompt.after !== null).slice(0, ANSWERS);
  if (chosen && !listed.includes(chosen)) listed.splice(-1, 1, chosen);
  const answer = (prompt) => (side === "A" ? prompt.before : prompt.after);
  const line = (prompt) => el("li", {}, el("button", { type: "button", class: "answer-line", "aria-pressed": String(prompt === chosen), "data-prompt": prompt.id, title: words(prompt) || prompt.id, onclick: () => choosePrompt(prompt === chosen ? "" : prompt.id) },
    el("span", { class: "asked" }, words(prompt) ? endOf(words(prompt), 24) : cut(prompt.id, 24)), el("b", { class: side === "B" && prompt.before !== prompt.after ? "changed" : null }, answer(prompt) === null ? "–" : asToken(answer(prompt)))));
  return [
    el("p", { class: "which" }, el("span", { class: "badge" }, side), side === "A" ? "before" : "after"),
    el("h3", { class: "model" }, model.name), model.fingerprint ? el("p", { class: "mono dim", title: "fingerprint of the weights" }, model.fingerprint) : null,
    listed.length ? [el("h4", {}, "What it says next"), el("ol", { class: "answers" }, listed.map(line))] : null,
  ];
}

const endOf = (given, length) => (given.length > length ? `…${given.slice(1 - length)}` : given);

function bars(pairs, chosen, choose) {
  const most = Math.max(...pairs.map(([, size]) => Math.abs(size ?? 0))) || 1;
  return el("ol", { class: "bars" }, pairs.map(([name, size]) => el("li", {},
    el("button", { type: "button", class: "link", "aria-pressed": String(name === chosen), onclick: () => choose(name) }, name),
    el("span", { class: "bar" }, el("i", { class: size < 0 ? "negative" : null, "data-effect": size, style: { width: `${(100 * Math.abs(size ?? 0)) / most}%` } })), el("span", { class: "value" }, number(size)))));
}

/** What the selection changes: both models, the card of the part, the card of the prompt. */
function showCards() {
  byId("model-a").replaceChildren(...modelCard("A", DATA.models[0]).flat(9).filter(Boolean));
  byId("model-b").replaceChildren(...modelCard("B", DATA.models[1]).flat(9).filter(Boolean));
  byId("part").replaceChildren(...(state.node ? describePart(state.node) : [el("h3", { class: "hint" }, "The selected part"), el("p", { class: "dim hint" }, "Select a part in the picture or in the table to see its numbers, and the prompts that it moves.")]).flat(9).filter(Boolean));
  byId("movers").replaceChildren(...movers().flat(9).filter(Boolean));
  byId("one-prompt").replaceChildren(...promptCard(PROMPTS.get(state.prompt)).flat(9).filter(Boolean));
}

/** The largest effects, or the prompts that the selected part moves most. */
function movers() {
  if (!state.node) return [el("h3", {}, "Largest effects"), BY_EFFECT.some((node) => node.effect?.[0]) ? bars(BY_EFFECT.filter((node) => node.effect?.[0]).slice(0, 6).map((node) => [node.node, node.effect?.[0]]), "", chooseNode) : el("p", { class: "dim" }, "There are none.")];
  const moved = DATA.prompts.filter((prompt) => !missing(effectOn(prompt, state.node))).sort((a, b) => Math.abs(effectOn(b, state.node)) - Math.abs(effectOn(a, state.node))).slice(0, 6);
  return [el("h3", {}, `Prompts that ${state.node} moves most`), moved.length ? bars(moved.map((prompt) => [prompt.id, effectOn(prompt, state.node)]), state.prompt, choosePrompt) : el("p", { class: "dim" }, "It is not among the largest effects on any prompt.")];
}

function promptCard(prompt) {
  if (!prompt) return [el("h3", { class: "hint" }, "The selected prompt"), el("p", { class: "dim hint" }, "Select a prompt to see which parts change it most.")];
  return [
    el("h3", {}, `Prompt ${prompt.id}`), el("p", { class: "quoted" }, words(prompt) || "The document does not keep its text."),
    detailList([[METRIC, number(prompt.total)], ["touched", prompt.touched ? "yes" : "no"], ["before", asToken(prompt.before ?? "–")], ["after", asToken(prompt.after ?? "–")]]),
    prompt.effects.length ? [el("h4", {}, "Largest effects on it"), bars(prompt.effects.slice(0, BARS), state.node, chooseNode)] : el("p", { class: "dim" }, "No effects are kept for it."),
  ];
}

function renderView() {
  drawing = drawNodes(DATA.graph, { label: DATA.graph.grid ? "The parts of the model, layer by layer." : "The circuit.", view, moved: saveView, paint: (name) => paintPart(NODES.get(name)), words: partWords, tip: describePart, choose: chooseNode, chosen: () => state.node });
  const caption = `${DATA.models[1].name} against ${DATA.models[0].name}: made here (colour) and effect on ${METRIC} (ring)`;
  byId("view").replaceChildren(el("h2", {}, "Two models side by side"),
    el("div", { class: "trio" },
      el("div", { class: "card", id: "model-a" }), el("div", { class: "card", id: "model-b" }),
      el("div", { class: "card middle" }, el("h3", {}, DATA.graph.grid ? "All parts of the model" : "The circuit between them"), el("div", { class: "tools" }, drawing.buttons, exportButtons(drawing.picture, caption, slug(caption))), partsKey(), drawing.framed),
      el("div", { class: "card detail", id: "part", role: "status" }), el("div", { class: "card", id: "movers" })));
}

function renderParts() {
  const kinds = [...new Set(DATA.nodes.map((node) => node.kind))];
  partsSheet = makeSheet({
    caption: "Parts of the model", state, sort: "sort", rows: DATA.nodes, noun: "parts", none: "No part fits these filters.", saved: saveView, key: (node) => node.node, chosen: () => state.node, choose: (node) => chooseNode(node.node),
    keep: (node) => matches(state.find, node.node) && (!state.kind || node.kind === state.kind) && (!state.made || node.made > 0),
    controls: (changed) => [
      searchBox({ id: "find", name: "find", hint: "m3, a2.h1 …", state, changed }),
      choiceBox({ id: "kind", label: "kind", name: "kind", state, changed, choices: kinds.map((kind) => [kind, KIND_NAMES[kind]]) }), tickBox({ id: "made", label: "made here > 0", name: "made", state, changed })],
    columns: [
      { name: "node", of: (node) => node.node, show: (node) => el("b", {}, node.node) },
      { name: "kind", side: true, of: (node) => node.kind, show: (node) => KIND_NAMES[node.kind] },
      { name: "made here", title: "norm of what the part itself changed, over that of A’s write, rms over prompts and positions", number: true, of: (node) => node.made, show: (node) => madeCell(node.made) },
      { name: "inherited", title: "norm of what came from changed inputs, likewise", number: true, of: (node) => node.inherited, show: (node) => number(node.inherited) },
      estimateColumn("effect", (node) => node.effect, `on ${METRIC}, of what was made here`), estimateColumn("restored", (node) => node.restored, `change of ${METRIC} when A’s part is put into B`),
      { name: "share", title: "effect over the total change; sorted by size", number: true, of: (node) => sizeOf(node.share), show: (node) => percent(node.share) },
    ],
  });
  byId("parts").replaceChildren(el("h2", {}, "Every part"), el("div", { class: "card" }, partsSheet.element));
}

const madeCell = (made) => (missing(made) ? "–" : [el("span", { class: "bar" }, made > 0 ? el("i", { style: { width: `${Math.max(4, 100 * decadeOf(made))}%`, background: heat(decadeOf(made)) } }) : null), el("span", { class: "figure" }, number(made))]);

const chips = (prompt) => prompt.effects.slice(0, CHIPS).map(([name, size]) => [el("span", { class: `chip${name === state.node ? " lit" : ""}` }, `${name} ${number(size)}`), " "]);

function promptColumns() {
  const most = Math.max(...DATA.prompts.map((prompt) => Math.abs(prompt.total ?? 0))) || 1;
  const changed = (prompt) => prompt.before !== prompt.after;
  return [
    { name: "prompt", wide: true, of: (prompt) => prompt.id, show: (prompt) => el("div", { class: "clamped" }, el("b", {}, cut(prompt.id, 40)), " ", el("span", { class: "dim" }, endOf(words(prompt), 90))) },
    { name: "total", title: `${DATA.metric[1]}; sorted by size`, number: true, of: (prompt) => sizeOf(prompt.total), show: (prompt) => [el("span", { class: "bar" }, el("i", { class: "accent", style: { width: `${(100 * Math.abs(prompt.total ?? 0)) / most}%` } })), el("span", { class: "figure" }, number(prompt.total))] },
    state.node ? { name: `effect of ${state.node}`, title: "if it is among the largest on the prompt", number: true, of: (prompt) => effectOn(prompt, state.node), show: (prompt) => number(effectOn(prompt, state.node)) } : null,
    { name: "touched", of: (prompt) => (prompt.touched ? "yes" : "no"), show: (prompt) => (prompt.touched ? el("b", {}, "yes") : el("span", { class: "dim" }, "no")) },
    { name: "before → after", of: (prompt) => `${prompt.before} ${prompt.after}`, show: (prompt) => [asToken(prompt.before ?? "–"), " → ", el("span", { class: changed(prompt) ? "changed" : "dim" }, asToken(prompt.after ?? "–"))] },
    { name: "largest effects", wide: true, of: (prompt) => prompt.effects[0]?.[0], show: chips },
  ].filter(Boolean);
}

function renderPrompts() {
  promptsSheet = makeSheet({
    caption: "Prompts", state, sort: "prompts-sort", rows: DATA.prompts, noun: "prompts", none: DATA.prompts.length ? "No prompt fits these filters." : "The document has no prompts.", saved: saveView, key: (prompt) => prompt.id, chosen: () => state.prompt, choose: (prompt) => choosePrompt(prompt.id),
    keep: (prompt) => matches(state.prompts, `${prompt.id} ${words(prompt)} ${prompt.before ?? ""} ${prompt.after ?? ""}`) && (!state.touched || prompt.touched),
    controls: (changed) => [searchBox({ id: "find-prompt", name: "prompts", hint: "id, text, answer …", state, changed }), tickBox({ id: "touched", label: "touched only", name: "touched", state, changed })],
    columns: promptColumns(),
  });
  byId("texts").replaceChildren(el("h2", {}, "Every prompt"), el("div", { class: "columns prompts" }, el("div", { class: "card" }, promptsSheet.element), el("div", { class: "card beside detail", id: "one-prompt" })));
}

function render() {
  const touched = DATA.prompts.filter((prompt) => prompt.touched).length;
  renderFound(el("div", { class: "tiles" },
    el("div", { class: "tile" }, el("span", {}, `mean change of ${METRIC}`), el("b", { id: "total" }, number(DATA.total?.[0])), DATA.total && !missing(DATA.total[1]) ? el("small", {}, `${number(DATA.total[1])} to ${number(DATA.total[2])}`) : null),
    el("div", { class: "tile" }, el("span", {}, "prompts touched"), el("b", {}, `${touched} of ${DATA.prompts.length}`))));
  renderView();
  renderParts();
  renderPrompts();
  drawing.mark();
  drawing.centre(state.node || BY_EFFECT[0]?.node);
  showCards();
}

startStudy({ first: FIRST, state, keys: NODE_KEYS, draw: render, clean() {
  if (!NODES.has(state.node)) state.node = "";
  if (!PROMPTS.has(state.prompt)) state.prompt = "";
  if (!DATA.nodes.some((node) => node.kind === state.kind)) state.kind = "";
  Object.assign(view, viewAt(state.zoom));
} });
