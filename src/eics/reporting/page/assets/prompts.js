// All prompts: a table to sort and filter, beside the distributions.

const FILTER = { needle: "", status: "", label: "" };
const SORTED_BY = {};

function makePrompts(state, choose) {
  const labelled = RECORDS.some((record) => record.label !== undefined);
  const labels = [...new Set(RECORDS.map(labelOf))].sort();
  // More labels than colours must be numbers or names, which are no groups.
  const split = labelled && labels.length <= LABELS.light.length;
  const count = el("span", { class: "dim", role: "status" });
  const holder = el("div");
  const legend = split ? el("p", { class: "legend" }) : null;
  const spread = el("div", { class: "distributions" });
  let table = null;

  const labelMark = (label) => el("span", { class: "label" }, split && el("i", { style: { background: labelColour(labels.indexOf(label)) } }), cut(label, 30));

  function columns(records) {
    const has = (name) => records.some((record) => !missing(value(record, name)));
    const sheaf = DATA.runs[state.run].judged ? "C_ref" : "C_sh";
    const number = (name, title, short = name === "c_sh" ? sheaf : NAMES[name]) => has(name) && { name: short, title, number: true, of: (record) => value(record, name), show: (record) => shownNumber(record, name) };
    return [
      { name: "prompt", wide: true, of: (record) => String(record.id), show: (record) => [el("b", {}, cut(String(record.id), 60)), " ", el("span", { class: "dim" }, cut(promptText(record), 90)), record.warnings ? el("span", { class: "flag", title: record.warnings.join(" ") }, " ⚠", el("span", { class: "unseen" }, " has warnings")) : null] },
      records.some((record) => record.answer !== undefined) && { name: "answer", side: true, of: (record) => record.answer ?? null, show: (record) => cut(record.answer ?? "", 30) },
      labelled && { name: "label", side: true, of: (record) => record.label ?? null, show: (record) => labelMark(labelOf(record)) },
      number("p_value", "Small if some node wrote something unusual for what it read; holds for prompts of the same kind as the reference"),
      records.some(judged) && { name: "suspects", title: "Nodes that wrote something unusual for what they read, most unusual first", of: (record) => record.suspects?.join(" ") || null, show: suspectList },
      number("eics", `The score: emergence term / (1 + ${sheaf})`),
      number("c_sh", sheaf === "C_ref" ? "How unusual the nodes are together; 1 on a usual prompt" : "How much the circuit's edges leave unexplained; 0 means everything is explained"),
      number("dei", "Macro EI minus the EI of the parts, signed"),
      number("dei_norm", "Emergence term: dEI over macro EI, clipped at 0; r / (1 + r) if intensive", "term"),
      number("emergence_ratio", "Emergence ratio: macro EI over the mean EI of the parts, both per channel", "ratio r"),
      number("percentile", "Of the score among the calibration's reference prompts"),
      { name: "status", of: (record) => record.status, show: (record) => el("span", { class: `status ${record.status}` }, record.status) },
    ].filter(Boolean);
  }

  function render() {
    table = makeTable({ caption: "All prompts", columns: columns(recordsOf(state.run)), sorting: SORTED_BY, key: (record) => INDEX.get(record), choose });
    holder.replaceChildren(table.frame);
    filterRows();
  }

  function filterRows() {
    const needle = FILTER.needle.trim().toLowerCase();
    const all = recordsOf(state.run);
    const rows = all.filter((record) =>
      (!FILTER.status || record.status === FILTER.status) && (!FILTER.label || labelOf(record) === FILTER.label) &&
      (!needle || `${record.id} ${promptText(record)} ${record.answer ?? ""} ${record.reason ?? ""} ${record.suspects?.join(" ") ?? ""}`.toLowerCase().includes(needle)));
    table.set(rows);
    table.mark(INDEX.get(state.record), false);
    count.textContent = `${rows.length} of ${all.length} prompts`;
    drawSpread(rows);
  }

  function drawSpread(records) {
    const present = labels.filter((label) => records.some((record) => labelOf(record) === label));
    const rows = split ? present.map((label) => ({ label, colour: labelColour(labels.indexOf(label)) })) : [{ label: null, colour: labelColour(0) }];
    const figures = renderDistributions(records, rows, state.record, choose);
    spread.replaceChildren(...(figures.length ? figures : [el("p", { class: "dim" }, "No numbers to show.")]));
    legend?.replaceChildren(...present.map(labelMark));
  }

  const setFilter = (name) => (event) => {
    FILTER[name] = event.target.value;
    filterRows();
  };
  const filter = (name, choices) => el("label", {}, name, el("select", { onchange: setFilter(name), id: `filter-${name}` }, el("option", { value: "" }, "all"), choices.map((choice) => el("option", { value: choice }, cut(choice, 30)))));
  byId("all").replaceChildren(
    el("h2", {}, "All prompts"),
    el("div", { class: "columns prompts" },
      el("div", { class: "card" },
        el("div", { class: "tools" },
          el("label", {}, "find", el("input", { type: "search", id: "find", placeholder: "id, prompt, answer …", oninput: setFilter("needle") })),
          filter("status", [...new Set(RECORDS.map((record) => record.status))]), labelled ? filter("label", labels) : null, count),
        holder),
      el("div", { class: "card" }, el("h3", {}, "Distributions"), legend, spread,
        el("p", { class: "dim" }, "Line: median. Hollow dot: clipped to 0.")),
    ),
  );
  return {
    render,
    mark() {
      table.mark(INDEX.get(state.record));
      drawSpread(table.shown());
    },
    shown: () => table.shown(),
  };
}

const NAMED = 3; // suspects before "more"

/** The suspects of a prompt, each marked as in the picture. */
function suspectList(record) {
  if (!judged(record)) return "–";
  if (!record.suspects.length) return el("span", { class: "dim" }, "none");
  const more = record.suspects.length - NAMED;
  return [record.suspects.slice(0, NAMED).map((node) => [el("span", { class: "suspect-name" }, node), " "]), more > 0 ? el("span", { class: "dim", title: record.suspects.join(", ") }, `+${more}`) : null];
}

function shownNumber(record, name) {
  const error = errorOf(record, name);
  if (name === "percentile" && !missing(value(record, name))) return chip(value(record, name));
  return el("span", { title: error ? `standard error ${text(error, 2)}` : null }, text(value(record, name)));
}
