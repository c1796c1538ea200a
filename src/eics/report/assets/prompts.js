// All prompts: a table to sort and filter, and the distributions beside it.

const MOST_LABELS = 8; // more are numbers or names, and no way to split anything
const ALL = { needle: "", status: "", label: "" };

function makePrompts(state, choose) {
  const runRecords = () => recordsOf(state.run);
  const labelled = DATA.records.some((record) => record.label !== undefined);
  const answered = DATA.records.some((record) => record.answer !== undefined);
  const has = (name) => DATA.records.some((record) => !missing(value(record, name)));
  const number = (name, title) => ({ name: NAMES[name], title, number: true, of: (record) => value(record, name), show: (record) => shownNumber(record, name) });
  const columns = [
    { name: "prompt", wide: true, of: (record) => String(record.id), show: (record) => [el("b", {}, String(record.id)), " ", el("span", { class: "dim" }, cut(promptText(record), 90))] },
    answered && { name: "answer", of: (record) => record.answer ?? null, show: (record) => record.answer ?? "" },
    labelled && { name: "label", of: (record) => record.label ?? null, show: (record) => labelMark(record.label) },
    number("eics", "The score: emergence term / (1 + C_sh)"),
    number("c_sh", "What is not explained along the circuit; 0 is all explained"),
    number("dei", "EI of the whole minus the parts', signed"),
    number("dei_norm", "dEI over EI of the whole, clipped at 0; where intensive, r / (1 + r)"),
    has("percentile") && number("percentile", "Of the score among the reference prompts"),
    { name: "status", of: (record) => record.status, show: (record) => el("span", { class: `status ${record.status}` }, record.status) },
  ].filter(Boolean);
  const table = makeTable({ caption: "All prompts", columns, key: (record) => PLACE.get(record), choose });
  const count = el("span", { class: "dim", role: "status" });
  const spread = el("div", { class: "distributions" });
  const filter = (name, label, choices) => el("label", {}, label, el("select", { onchange: (event) => set(name, event.target.value), id: `filter-${name}` }, el("option", { value: "" }, "all"), choices.map((choice) => el("option", {}, choice))));
  const statuses = [...new Set(DATA.records.map((record) => record.status))];
  const find = el("input", { type: "search", id: "find", placeholder: "id, prompt, answer …", oninput: (event) => set("needle", event.target.value) });
  const labels = [...new Set(DATA.records.map((record) => record.label ?? "no label"))].sort();
  const split = labelled && labels.length <= MOST_LABELS;
  const legend = split ? el("p", { class: "legend" }, labels.map((label) => labelMark(label))) : null;

  function set(name, to) {
    ALL[name] = to;
    filterRows();
  }

  function labelMark(label) {
    const index = labels.indexOf(label ?? "no label");
    return el("span", { class: "label" }, split && el("i", { style: { background: labelColour(index) } }), label ?? "no label");
  }

  function filterRows() {
    const needle = ALL.needle.trim().toLowerCase();
    const all = runRecords();
    const rows = all.filter((record) =>
      (!ALL.status || record.status === ALL.status) && (!ALL.label || (record.label ?? "no label") === ALL.label) &&
      (!needle || `${record.id} ${promptText(record)} ${record.answer ?? ""} ${record.reason ?? ""}`.toLowerCase().includes(needle)));
    table.set(rows);
    count.textContent = `${rows.length} of ${all.length} prompts`;
    drawSpread(rows);
  }

  function drawSpread(rows) {
    const present = labels.filter((label) => rows.some((record) => (record.label ?? "no label") === label));
    const parts = renderDistributions(rows, split ? present : [], state.record, choose);
    spread.replaceChildren(...(parts.length ? parts : [el("p", { class: "dim" }, "No numbers to show.")]));
    legend?.replaceChildren(...present.map((label) => labelMark(label)));
  }

  byId("all").replaceChildren(
    el("h2", {}, "All prompts"),
    el("div", { class: "columns prompts" },
      el("div", { class: "card" },
        el("div", { class: "tools" }, el("label", {}, "find", find), filter("status", "status", statuses), labelled ? filter("label", "label", labels) : null, count),
        table.frame),
      el("div", { class: "card" }, el("h3", {}, "How the numbers are spread"), legend, spread,
        el("p", { class: "dim" }, "Line: median. Hollow: clipped to 0.")),
    ),
  );
  return {
    render: filterRows,
    mark(into = true) {
      table.mark(PLACE.get(state.record), into);
      drawSpread(table.shown());
    },
    shown: table.shown,
  };
}

const promptText = (record) => record.prompt ?? (record.tokens ? record.tokens.join("") : "");

function shownNumber(record, name) {
  const error = record.errors?.[name];
  return el("span", { title: error ? `standard error ${text(error, 2)}` : null }, text(value(record, name)));
}
