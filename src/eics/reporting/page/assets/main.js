// The state of the page, and the actions that change it.

const state = {
  run: null, record: null, other: null, base: null, term: null, hovered: null, limit: STEP, tab: "edge", measure: null, prune: 0, colour: null, slides: false,
  view: { scale: 1, x: 0, y: 0 }, viewB: { scale: 1, x: 0, y: 0 },
};

const actions = {
  selected: () => state.term,
  listed: () => prompts.shown(),
  show(record) {
    if (!record) return;
    turnTo(record, state.other);
    prompts.mark();
    renderPrompt();
    announce(`Prompt ${record.id}: ${headline(record)}`);
  },
  step(by) {
    const listed = prompts.shown();
    const at = listed.indexOf(state.record);
    actions.show(listed[clamp(at + by, 0, listed.length - 1)]);
  },
  /** Switches to another configuration and stays on the same prompts if it has them. */
  run(run) {
    const records = recordsOf(run);
    const counterpart = (record) => record && twin(record, run);
    if (run !== state.run) Object.assign(state, { run, tab: DATA.runs[run].byNode ? "node" : "edge" });
    turnTo(counterpart(state.record) ?? records.find(scored) ?? records[0] ?? null, counterpart(state.other));
    renderAll();
    announce(`Configuration ${DATA.runs[run].label}`);
  },
  compare(record) {
    Object.assign(state, { other: record, tab: record && !judged(state.record) ? "edge" : state.tab });
    renderPrompt();
  },
  /** Chooses A of a comparison: a prompt becomes the one that the page shows. */
  base(subject) {
    state.base = subject?.mean ? subject : null;
    if (!subject || subject.mean) return renderPrompt();
    if (subject === state.other) state.other = null;
    const { other } = state;
    if (subject.run !== state.run) Object.assign(state, { run: subject.run, tab: DATA.runs[subject.run].byNode ? "node" : "edge" });
    turnTo(subject, other);
    return renderAll();
  },
  measure(measure) {
    state.measure = measure;
    versus.render();
    writeAddress(state);
  },
  choose(term) {
    state.term = term;
    if (term && term.kind !== state.tab) actions.tab(term.kind);
    else prompt.mark();
    versus.mark();
    writeAddress(state);
  },
  hover(term, event) {
    const changed = term?.kind !== state.hovered?.kind || term?.index !== state.hovered?.index;
    state.hovered = term;
    if (changed) prompt.point();
    tip(term, event);
  },
  limit(to) {
    state.limit = to;
    renderPrompt();
  },
  prune(least) {
    state.prune = least;
    renderPrompt();
    byId("prune")?.focus();
    announce(byId("left")?.textContent ?? "");
  },
  colour(scale) {
    state.colour = scale;
    renderPrompt();
    byId("colour")?.focus();
  },
  moved: () => writeAddress(state),
  tab(kind) {
    state.tab = kind;
    prompt.showTab();
    writeAddress(state);
  },
  slides(on = !state.slides) {
    state.slides = on;
    showSlides();
    renderPrompt();
    announce(on ? "Presentation: large type. Escape leaves it." : "Presentation left.");
  },
};

/** Draws the prompt and what it is compared with anew. */
function renderPrompt() {
  prompt.render();
  versus.render();
  writeAddress(state);
}

function renderAll() {
  renderRuns();
  renderRun(DATA.runs[state.run]);
  prompts.render();
  renderPrompt();
}

/** Shows another record; the selection and the zoom stay if the circuit stays. */
function turnTo(record, other) {
  const same = Boolean(state.record && record) && circuitOf(state.record) === circuitOf(record);
  if (!same) Object.assign(state, { term: null, view: { scale: 1, x: 0, y: 0 }, viewB: { scale: 1, x: 0, y: 0 }, prune: 0 });
  Object.assign(state, { record, hovered: null, other: other && other !== record && scored(other) ? other : null });
  tip(null);
}

/** Goes to the view that the address describes. */
function goToAddress() {
  if (!DATA.runs.length) return;
  const given = readAddress();
  Object.assign(state, given, { slides: given.slides || asked, tab: given.tab ?? (DATA.runs[given.run ?? state.run].byNode ? "node" : "edge") });
  showSlides();
  renderAll();
}

/** Whether the address asks for the presentation with "?present". */
const asked = /[?&]present\b/.test(location.search);

function showSlides() {
  document.documentElement.classList.toggle("slides", state.slides);
  byId("present").setAttribute("aria-pressed", String(state.slides));
}

const tip = (term, event) => showTip(term && event ? describe(state.record, term) : null, event);

function renderRuns() {
  byId("runs").replaceChildren(...(DATA.runs.length < 2 ? [] : DATA.runs.map((run, index) =>
    el("button", { type: "button", role: "radio", "aria-checked": String(index === state.run), onclick: () => actions.run(index) }, run.label))));
}

function redraw() {
  if (DATA.runs.length) renderAll();
}

byId("title").append(DATA.title);
byId("foot").append(`eics ${DATA.eics}${DATA.source ? `, from ${DATA.source}` : ""}. One self-contained file: keep it, send it.`);
followTheme(redraw);
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is taken
  byId("one").focus();
});
byId("present").addEventListener("click", () => actions.slides());
addEventListener("hashchange", goToAddress);
let width = innerWidth;
addEventListener("resize", () => {
  if (width !== innerWidth && DATA.runs.length) renderPrompt(); // a phone's bars come and go without changing the width
  width = innerWidth;
});
listenToKeys(actions);
renderNotes("Not everything could be read");
renderMixed();
const prompts = makePrompts(state, actions.show);
const prompt = makePrompt(state, actions);
const versus = makeVersus(state, actions);
if (DATA.runs.length) {
  state.run = 0;
  state.record = recordsOf(0).find(scored) ?? recordsOf(0)[0] ?? null;
  goToAddress();
} else byId("run").append(el("h2", {}, "The run"), el("p", { class: "card" }, "The file has no record that can be read."));
