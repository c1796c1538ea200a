// What the pages of studies share: a state that a link restores, the title, what was found.

const STUDY_KEYS = [["?", "this list"], ["Tab", "next control, table or picture"], ["↑ ↓", "in a table: rows"]];

/**
 * A page whose state is texts and flags. What differs from `first` is in the address; `clean` drops what a link has and
 * the page has not.
 * @param {{first: Object<string, string|boolean>, state: Object, keys: string[][], clean: (state) => void, draw: () => void}} page
 */
function startStudy({ first, state, keys, clean, draw }) {
  function goToAddress() {
    const given = readHash();
    for (const [name, value] of Object.entries(first)) state[name] = given[name] === undefined ? value : typeof value === "boolean" ? given[name] === "1" : given[name];
    clean(state);
    draw();
  }

  const help = makeHelp([...keys, ...STUDY_KEYS]);
  byId("title").append(DATA.title);
  byId("foot").append(`eics ${DATA.eics}. One self-contained file: keep it, send it.`);
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address is taken
    byId("main").focus();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "?" || event.ctrlKey || event.metaKey || event.altKey || help.open || event.target.closest("input, select")) return;
    event.preventDefault();
    help.showModal();
  });
  addEventListener("hashchange", goToAddress);
  followTheme(draw);
  renderNotes("Remarks");
  goToAddress();
}

const saveState = (state, first) => writeHash(() => new URLSearchParams(Object.keys(first).filter((name) => state[name] !== first[name]).map((name) => [name, typeof state[name] === "boolean" ? (state[name] ? "1" : "0") : state[name]])).toString());

/** The sentences of a study, the first of them large, with its main numbers below and its facts beside them. */
function renderFound(more) {
  const [lead, ...rest] = DATA.sentences;
  byId("found").replaceChildren(
    el("h2", {}, "What was found"),
    el("div", { class: "columns found" },
      el("div", { class: "card" }, lead ? el("p", { class: "verdict" }, lead) : el("p", { class: "dim" }, "The document has no sentences."), rest.map((words) => el("p", { class: "says" }, words)), more),
      el("div", { class: "card" }, el("dl", { class: "facts" }, DATA.facts.map(([name, fact]) => [el("dt", {}, name), el("dd", {}, fact)])))));
}
