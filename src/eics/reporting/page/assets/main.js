// The state of the page, and the actions that change it.

const state = { run: null, record: null, other: null, term: null, hovered: null, limit: STEP, tab: "edge" };

const actions = {
  selected: () => state.term,
  listed: () => prompts.shown(),
  show(record) {
    if (!record) return;
    turnTo(record, state.other);
    prompts.mark();
    prompt.render();
  },
  /** Switches to another configuration and stays on the same prompts if it has them. */
  run(run) {
    const records = recordsOf(run);
    const counterpart = (record) => record && twin(record, run);
    if (run !== state.run) Object.assign(state, { run, tab: DATA.runs[run].byNode ? "node" : "edge" });
    turnTo(counterpart(state.record) ?? records.find(scored) ?? records[0] ?? null, counterpart(state.other));
    renderRuns();
    renderRun(DATA.runs[run]);
    prompts.render();
    prompt.render();
  },
  compare(record) {
    Object.assign(state, { other: record, tab: record ? "edge" : state.tab });
    prompt.render();
  },
  choose(term) {
    state.term = term;
    if (term && term.kind !== state.tab) actions.tab(term.kind);
    else prompt.mark();
  },
  hover(term, event) {
    const changed = term?.kind !== state.hovered?.kind || term?.index !== state.hovered?.index;
    state.hovered = term;
    if (changed) prompt.point();
    tip(term, event);
  },
  limit(to) {
    state.limit = to;
    prompt.render();
  },
  tab(kind) {
    state.tab = kind;
    prompt.showTab();
  },
};

/** Shows another record; the selection and the comparison stay if the circuit stays. */
function turnTo(record, other) {
  const same = (shown) => shown && record && circuitOf(shown) === circuitOf(record);
  const term = same(state.record) ? state.term : null;
  Object.assign(state, { record, term, hovered: null, other: same(other) && other !== record && scored(other) ? other : null });
  tip(null);
}

function tip(term, event) {
  const box = byId("tip");
  box.hidden = !term || !event;
  if (box.hidden) return;
  box.replaceChildren(...describe(state.record, term).flat(9).filter(Boolean));
  const left = event.clientX + 16 + box.offsetWidth > innerWidth ? event.clientX - 12 - box.offsetWidth : event.clientX + 16;
  Object.assign(box.style, { left: `${Math.max(4, left)}px`, top: `${clamp(event.clientY + 14, 4, innerHeight - box.offsetHeight - 4)}px` });
}

function renderRuns() {
  byId("runs").replaceChildren(...(DATA.runs.length < 2 ? [] : DATA.runs.map((run, index) =>
    el("button", { type: "button", role: "radio", "aria-checked": String(index === state.run), onclick: () => actions.run(index) }, run.label))));
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  byId("theme").textContent = isDark() ? "☀ light" : "☾ dark";
}

function redraw() {
  if (DATA.runs.length) actions.run(state.run);
}

byId("title").append(DATA.title);
byId("foot").append(`eics ${DATA.eics}${DATA.source ? `, from ${DATA.source}` : ""}. One self-contained file: keep it, send it.`);
byId("theme").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  storeTheme(theme);
  setTheme(theme);
  redraw();
});
systemTheme.addEventListener("change", () => {
  setTheme(null);
  redraw();
});
setTheme(storedTheme());
renderNotes();
const prompts = makePrompts(state, actions.show);
const prompt = makePrompt(state, actions);
if (DATA.runs.length) actions.run(0);
else byId("run").append(el("h2", {}, "The run"), el("p", { class: "card" }, "The file has no record that can be read."));
