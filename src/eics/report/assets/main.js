// What is shown, and who is told when it changes.

const state = { run: 0, record: null, other: null, term: null, hovered: null, limit: STEP, tab: "edge" };

const actions = {
  selected: () => state.term,
  listed: () => prompts.shown(),
  show(record) {
    if (!record) return;
    const keep = state.record && circuitOf(state.record) === circuitOf(record);
    Object.assign(state, { record, term: keep ? state.term : null, hovered: null, other: keep && state.other !== record ? state.other : null });
    prompts.mark();
    prompt.render();
  },
  compare(record) {
    Object.assign(state, { other: record, tab: record ? "edge" : state.tab });
    prompt.render();
  },
  choose(term) {
    state.term = term && state.term?.kind === term.kind && state.term.index === term.index ? state.term : term;
    if (term && term.kind !== state.tab) actions.tab(term.kind);
    else prompt.mark();
  },
  hover(term, event) {
    const changed = term?.kind !== state.hovered?.kind || term?.index !== state.hovered?.index;
    state.hovered = term;
    if (changed) {
      markCircuit(state.record, state.term, state.hovered);
      markCompare(state.hovered ?? state.term);
    }
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

function tip(term, event) {
  const box = byId("tip");
  box.hidden = !term || !event;
  if (box.hidden) return;
  box.replaceChildren(...describe(state.record, term).flat(9).filter(Boolean));
  const left = event.clientX + 16 + box.offsetWidth > innerWidth ? event.clientX - 12 - box.offsetWidth : event.clientX + 16;
  Object.assign(box.style, { left: `${Math.max(4, left)}px`, top: `${clamp(event.clientY + 14, 4, innerHeight - box.offsetHeight - 4)}px` });
}

function showRun(run) {
  const id = state.record?.id;
  state.run = run;
  const records = recordsOf(run);
  renderRuns();
  renderRun(DATA.runs[run]);
  state.record = records.find((record) => record.id === id) ?? records.find(scored) ?? records[0] ?? null;
  Object.assign(state, { other: null, hovered: null, tab: DATA.runs[run].byNode ? "node" : "edge" });
  prompts.render();
  prompts.mark(false);
  prompt.render();
}

function renderRuns() {
  byId("runs").replaceChildren(...(DATA.runs.length < 2 ? [] : DATA.runs.map((run, index) =>
    el("button", { type: "button", role: "radio", "aria-checked": String(index === state.run), onclick: () => showRun(index) }, run.label))));
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  byId("theme").textContent = isDark() ? "☀ light" : "☾ dark";
}

function redraw() {
  if (DATA.runs.length) showRun(state.run);
}

byId("title").append(DATA.title);
byId("foot").append(`eics ${DATA.eics}${DATA.source ? `, from ${DATA.source}` : ""}. One file, no network: keep it, send it.`);
byId("theme").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  keepTheme(theme);
  setTheme(theme);
  redraw();
});
wishes.addEventListener("change", () => {
  setTheme(null);
  redraw();
});
setTheme(keptTheme());
renderNotes();
const prompts = makePrompts(state, actions.show);
const prompt = makePrompt(state, actions);
if (DATA.runs.length) showRun(0);
else byId("run").append(el("h2", {}, "The run"), el("p", { class: "card" }, "The file holds no record that can be read."));
