// Texts traced token by token: where a text is unusual, and which node wrote it.

const FIRST = { text: "", token: "", node: "", find: "", show: "", sort: "", order: "" };
const state = { ...FIRST };
const TEXTS = DATA.texts;
const BY_ID = new Map(TEXTS.map((given) => [given.id, given]));
const ROWS = 60; // of the heat map, before "all"
const LISTED = 10; // nodes of a token, before "all"
const SHOW = { suspects: "with suspects", usual: "as usual", failed: "failed" };
const kindOf = (given) => (given.status === "failed" ? "failed" : given.suspectCount ? "suspects" : "usual");

let textsSheet = null;
let heat = null;
let allRows = false;
let allNodes = false;

const current = () => BY_ID.get(state.text) ?? null;
const tokenAt = () => (state.token === "" ? null : Number(state.token));
const nodeAt = () => (DATA.nodes.includes(state.node) ? DATA.nodes.indexOf(state.node) : null);
const saveView = () => saveState(state, FIRST);
const peakOf = (given) => given.suspects?.[0] ?? largestOf(given);

/** The largest z of a text as node, token and z. */
function largestOf(given) {
  if (given.status === "failed") return null;
  const { largest, at } = traceOf(given);
  const token = largest.reduce((best, one, index) => (one > (largest[best] ?? -Infinity) || missing(largest[best]) ? index : best), 0);
  return missing(largest[token]) ? null : [at[token], token, largest[token]];
}

function chooseText(given) {
  Object.assign(state, { text: given.id, token: "", node: "" });
  startAt(given);
  allRows = allNodes = false;
  textsSheet.mark();
  renderText();
  saveView();
  announce(given.status === "failed" ? `Text ${given.id}: failed` : `Text ${given.id}: ${given.sentence}`);
}

/** A text opens at what is most unusual in it. */
function startAt(given) {
  const peak = given && peakOf(given);
  if (!peak) return;
  if (state.token === "") state.token = String(peak[1]);
  if (state.node === "" && peak[0] !== null) state.node = DATA.nodes[peak[0]];
}

function select(node, token) {
  if (node !== null) state.node = DATA.nodes[node];
  if (token !== null) state.token = String(token);
  showSelection();
  saveView();
}

/** Shows the selection in the text, the card, the heat map and the line. */
function showSelection() {
  for (const one of document.querySelectorAll(".tokens .token")) {
    const chosen = one.dataset.token === state.token;
    one.setAttribute("aria-pressed", String(chosen));
    one.tabIndex = chosen || (state.token === "" && one.dataset.token === "0") ? 0 : -1;
  }
  showToken(tokenAt());
  heat?.mark(nodeAt(), tokenAt());
  showLine();
}

function showLine() {
  const [given, node] = [current(), nodeAt()];
  const line = node === null ? null : drawLine({ given, node, token: tokenAt(), choose: (token) => select(null, token), wide: onPaper.matches ? 680 : byId("line").clientWidth - 34 });
  byId("line").replaceChildren(el("h3", {}, node === null ? "One node over the tokens" : `z of ${DATA.nodes[node]} over the tokens`), ...(line ? [line] : [el("p", { class: "dim" }, node === null ? "Select a node in the heat map or beside the text." : notKept(given, node))]));
}

const notKept = (given, node) => (given.rows && !given.rows.includes(node) ? "The page keeps only the most unusual nodes of this text; the file that eics trace wrote has all of them." : "This node is not judged in this text.");

/** The card of a token: its suspects, then the z of its nodes, the most unusual first. */
function showToken(token) {
  const given = current();
  const box = byId("token");
  if (!box || !given) return;
  if (token === null) return box.replaceChildren(el("h3", {}, "The selected token"), el("p", { class: "dim" }, "Point at a token, or press Tab and use the arrow keys."));
  const { rows, z, suspects } = traceOf(given);
  const ranked = rows.filter((node) => !missing(z(node, token))).sort((a, b) => z(b, token) - z(a, token));
  const shown = allNodes ? ranked : ranked.slice(0, LISTED);
  const accused = suspects.get(token) ?? [];
  const most = Math.max(FULL, ...ranked.map((node) => z(node, token)));
  const row = (node) => el("li", {},
    el("button", { type: "button", class: "link", "data-node": DATA.nodes[node], "aria-pressed": String(DATA.nodes[node] === state.node), onclick: () => select(node, token) }, DATA.nodes[node]),
    el("span", { class: "bar" }, el("i", { style: { width: `${(100 * clamp(z(node, token), 0, most)) / most}%`, background: z(node, token) >= FULL ? unusualness(1) : null } })), el("span", { class: "value", "data-z": z(node, token) }, asZ(z(node, token))));
  return box.replaceChildren(...[
    el("h3", {}, `Token ${token} `, el("span", { class: "token" }, asToken(given.tokens[token]))),
    accused.length ? el("p", {}, accused.map(([node, size]) => [el("span", { class: "suspect-name" }, DATA.nodes[node]), ` z ${asZ(size)} `])) : el("p", { class: "dim" }, token === 0 && !ranked.length ? "The first token is not judged: every text begins there." : ranked.length ? "No suspect at this token." : "No node is judged at this token."),
    ranked.length ? [el("h4", {}, "z of its nodes, most unusual first"), el("ol", { class: "bars" }, shown.map(row))] : null,
    ranked.length > LISTED ? el("button", { type: "button", class: "quiet more", onclick: () => {
      allNodes = !allNodes;
      showToken(token);
    } }, allNodes ? "Show fewer" : `Show all ${ranked.length}`) : null,
  ].flat(9).filter(Boolean));
}

/** The text, coloured by the largest z of each token. */
function tokensOf(given) {
  const { largest, at, suspects } = traceOf(given);
  const written = (index) => given.generated !== null && index >= given.generated;
  const token = (word, index) => {
    const judged = !missing(largest[index]);
    const background = judged ? colourOfZ(largest[index]) : null;
    const label = `token ${index}, ${asToken(word)}, ${judged ? `largest z ${asZ(largest[index])} at ${at[index] === null ? "no node" : DATA.nodes[at[index]]}` : "not judged"}${suspects.has(index) ? ", suspect" : ""}${written(index) ? ", generated" : ""}`;
    return [
      index === given.generated && index > 0 ? el("span", { class: "from-here", "aria-hidden": "true" }, "▸ generated") : null,
      el("span", { class: `token${judged ? "" : " out"}${suspects.has(index) ? " suspect" : ""}${written(index) ? " written" : ""}`, "data-token": index, "data-z": judged ? largest[index] : null, role: "button", tabindex: -1, "aria-pressed": "false", "aria-label": label, style: background ? { background, color: inkOn(background) } : {} }, shownToken(word)),
      word.includes("\n") ? el("br") : null,
    ];
  };
  const line = el("p", { class: "tokens", role: "group", "aria-label": "The text, token by token" }, given.tokens.map(token));
  const under = (event) => event.target.closest(".token");
  line.addEventListener("click", (event) => under(event) && select(null, Number(under(event).dataset.token)));
  line.addEventListener("mouseover", (event) => under(event) && showToken(Number(under(event).dataset.token)));
  line.addEventListener("mouseleave", () => showToken(tokenAt()));
  line.addEventListener("focusin", (event) => under(event) && showToken(Number(under(event).dataset.token)));
  line.addEventListener("keydown", (event) => {
    const last = given.tokens.length - 1;
    const from = Number(under(event)?.dataset.token);
    const next = { ArrowRight: from + 1, ArrowLeft: from - 1, Home: 0, End: last, Enter: from, " ": from }[event.key];
    if (next === undefined || Number.isNaN(next)) return;
    event.preventDefault();
    select(null, clamp(next, 0, last));
    line.querySelector(`[data-token="${clamp(next, 0, last)}"]`).focus();
  });
  return line;
}

const shownToken = (word) => word.replaceAll("\n", "⏎");

const zKey = (title) => colourKey(title, gradient(unusualness), ["0 or less: usual", DATA.threshold === null ? `${asZ(FULL)} or more` : `${asZ(DATA.threshold)} or more: suspect`]);

function legendOf(given) {
  const swatch = (name, word, words) => el("span", { class: "swatch" }, el("span", { class: `token ${name}` }, word), words);
  return el("div", { class: "key" },
    zKey("colour: largest z of the token"),
    el("div", { class: "swatches" }, swatch("suspect", "ring", "suspect"), swatch("out", "dashed", "not judged"), given.generated === null ? null : swatch("written", "underlined", "generated")));
}

/** The same for the heat map. */
function heatKey(given) {
  const swatch = (name, words) => el("span", { class: "swatch" }, svg("svg", { viewBox: "0 0 26 16", width: 26, height: 16, "aria-hidden": "true" }, name === "cell-unjudged" ? hatching("hatch-key") : null, svg("rect", { x: 2, y: 2, width: 20, height: 12, class: name, fill: name === "cell-unjudged" ? "url(#hatch-key)" : null })), words);
  return el("div", { class: "key" }, zKey("colour: z"), el("div", { class: "swatches" }, given.suspectCount ? swatch("cell-ring", "suspect") : null, swatch("cell-unjudged", "not judged")));
}

function renderText() {
  const given = current();
  heat = null;
  byId("view").replaceChildren(el("h2", {}, given ? `Text ${cut(given.id, 60)}` : "One text"), ...(!given ? [el("p", { class: "empty" }, "The trace has no texts.")] : given.status === "failed" ? failed(given) : traced(given)));
  if (given?.status === "ok") {
    renderHeat();
    showSelection();
  } else byId("parts").replaceChildren();
}

const failed = (given) => [el("div", { class: "card" }, el("p", { class: "failed-text" }, el("b", {}, "This text could not be traced. "), given.reason), el("p", { class: "quoted" }, wordsOf(given) || "The trace does not keep its text."))];

const traced = (given) => [el("div", { class: "columns traced" },
  el("div", { class: "card" }, el("p", { class: `verdict${given.suspectCount ? " alarm" : ""}`, id: "verdict" }, given.sentence),
    el("div", { class: "tiles" }, tile("p", text(given.p, 3)), tile("suspects", String(given.suspectCount)), tile("tokens", String(given.tokens.length)), given.generated === null ? null : tile("generated", String(given.tokens.length - given.generated))),
    tokensOf(given), legendOf(given)),
  el("div", { class: "card beside detail", id: "token", role: "group", "aria-label": "The selected token" }))];

const tile = (name, shown) => el("div", { class: "tile minor" }, el("span", {}, name), el("b", {}, shown));

function renderHeat() {
  const given = current();
  const { rows, byPeak } = traceOf(given);
  const ordered = state.order === "circuit" ? rows : byPeak;
  const most = onPaper.matches ? 24 : allRows ? ordered.length : ROWS;
  const kept = ordered.slice(0, most);
  const chosen = nodeAt();
  if (chosen !== null && rows.includes(chosen) && !kept.includes(chosen)) kept.push(chosen);
  const choice = el("label", {}, "order", el("select", { id: "order", onchange: (event) => {
    state.order = event.target.value;
    renderHeat();
    showSelection();
    saveView();
    byId("order").focus();
  } }, [["", "most unusual first"], ["circuit", "as in the circuit"]].map(([value, words]) => el("option", { value, selected: state.order === value }, words))));
  const all = ordered.length > ROWS ? el("button", { type: "button", class: "quiet", onclick: () => {
    allRows = !allRows;
    renderHeat();
    showSelection();
  } }, allRows ? `Show ${ROWS}` : `Show all ${ordered.length}`) : null;
  const count = given.rows ? `The page keeps the ${given.rows.length} most unusual of ${DATA.nodes.length} nodes of this text.` : `${Math.min(most, ordered.length)} of ${DATA.nodes.length} nodes`;
  byId("parts").replaceChildren(el("h2", {}, "Nodes and tokens"),
    el("div", { class: "stack" }, el("div", { class: "card", id: "map" }, el("div", { class: "tools" }, choice, all, el("span", { class: "dim count" }, count)), heatKey(given)), el("div", { class: "card", id: "line" })));
  heat = drawHeat({ given, rows: kept, choose: select, wide: byId("map").clientWidth - 34 });
  byId("map").append(heat.element);
}

function renderTexts() {
  const place = (given) => {
    const peak = peakOf(given);
    return peak ? `${peak[0] === null ? "" : DATA.nodes[peak[0]]} at ${peak[1]} “${asToken(given.tokens[peak[1]])}”` : null;
  };
  const suspects = (given) => [...new Set((given.suspects ?? []).map(([node]) => node))].slice(0, 3).map((node) => [el("span", { class: "suspect-name" }, DATA.nodes[node]), " "]);
  const kinds = Object.keys(SHOW).filter((kind) => TEXTS.some((given) => kindOf(given) === kind));
  textsSheet = makeSheet({
    caption: "Texts", state, sort: "sort", rows: TEXTS, noun: "texts", none: TEXTS.length ? "No text fits these filters." : "The trace has no texts.", saved: saveView, key: (given) => given.id, chosen: () => state.text, choose: chooseText,
    keep: (given) => matches(state.find, `${given.id} ${wordsOf(given)} ${given.reason ?? ""}`) && (!state.show || kindOf(given) === state.show),
    controls: (changed) => [searchBox({ id: "find", name: "find", hint: "id or text …", state, changed }), choiceBox({ id: "show", label: "show", name: "show", state, changed, choices: kinds.map((kind) => [kind, SHOW[kind]]) })],
    columns: [
      { name: "text", wide: true, of: (given) => given.id, show: (given) => [el("div", { class: "clamped" }, el("b", {}, cut(given.id, 40)), " ", el("span", { class: "dim" }, cut(wordsOf(given), 120))), given.status === "failed" ? el("small", { class: "status failed" }, `failed: ${given.reason}`) : null] },
      { name: "p", title: "of the text’s largest z among whole calibration texts", number: true, of: (given) => given.p, show: (given) => text(given.p, 3) },
      { name: "largest z", number: true, of: (given) => peakOf(given)?.[2], show: (given) => asZ(peakOf(given)?.[2]) },
      { name: "where", of: place, show: (given) => place(given) ?? "–" },
      { name: "suspects", number: true, title: "nodes at tokens", of: (given) => given.suspectCount, show: (given) => (given.status === "failed" ? "–" : [given.suspectCount ? suspects(given) : null, el("span", { class: "count-of" }, String(given.suspectCount))]) },
    ],
  });
  byId("texts").replaceChildren(el("h2", {}, "All texts"), el("div", { class: "card" }, textsSheet.element));
}

/** What the page says of the whole trace. */
function sentencesOf() {
  const count = (kind) => TEXTS.filter((given) => kindOf(given) === kind).length;
  const counted = (size, words) => `${size} ${size === 1 ? "text" : "texts"} ${words}`;
  const lead = count("suspects") ? `${counted(count("suspects"), `of ${TEXTS.length}`)} ${count("suspects") === 1 ? "has" : "have"} a suspect: a node that wrote something unusual for what it read.` : "No text has a suspect.";
  const threshold = DATA.threshold === null ? `At level ${text(DATA.level, 3)} there is no threshold: the calibration has too few texts.` : `A node at a token is a suspect from z ${asZ(DATA.threshold)} on (level ${text(DATA.level, 3)}).`;
  return [TEXTS.length ? lead : "The trace has no texts.", threshold, count("failed") ? `${counted(count("failed"), "could not be traced")}; the list says why.` : null].filter(Boolean);
}

function notJudged() {
  const reasons = Object.entries(DATA.reasons);
  return reasons.length ? el("details", {}, el("summary", {}, `${reasons.length} ${reasons.length === 1 ? "node is" : "nodes are"} not judged`), el("dl", { class: "facts" }, reasons.map(([node, reason]) => [el("dt", {}, node), el("dd", {}, reason)]))) : null;
}

function render() {
  renderFound(notJudged());
  renderTexts();
  renderText();
}

byId("found").after(byId("texts"));
DATA.sentences = sentencesOf();
let width = innerWidth;
addEventListener("resize", () => {
  if (width !== innerWidth && heat) {
    renderHeat();
    showSelection();
  }
  width = innerWidth;
});
startStudy({ first: FIRST, state, keys: [["← →", "in the text: tokens; in the heat map: tokens"], ["↑ ↓", "in the heat map: nodes"]], draw: render, clean() {
  const given = current() ?? TEXTS.find((one) => kindOf(one) === "suspects") ?? TEXTS[0] ?? null;
  const token = Number(state.token);
  state.text = given?.id ?? "";
  if (!(Number.isInteger(token) && token >= 0 && token < (given?.tokens?.length ?? 0))) state.token = "";
  if (!DATA.nodes.includes(state.node)) state.node = "";
  if (!Object.hasOwn(SHOW, state.show)) state.show = "";
  startAt(given);
} });
