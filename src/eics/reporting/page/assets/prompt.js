// One prompt: its tokens and numbers, the circuit beside its tables, the curve, and a comparison with another prompt.

function makePrompt(state, actions) {
  let tables = {};
  let drawn = null;

  function render() {
    const record = state.record;
    const complete = record && scored(record);
    drawn = complete ? drawCircuit(record, state.limit, actions) : null;
    tables = {};
    byId("one").replaceChildren(
      el("h2", {}, "One prompt"),
      record ? el("div", { class: "card" }, chooser(record), tokens(record), configurations(record), numbers(record), record.reason ? el("p", { class: "warning" }, record.reason) : null) : el("p", { class: "card" }, "There is no record to show."),
      ...(complete ? [
        el("div", { class: "columns one" },
          el("div", { class: "card" }, el("h3", {}, "The circuit"), picture(record)),
          el("div", { class: "stack beside" }, el("div", { class: "card detail", id: "detail", role: "status" }), el("div", { class: "card", id: "terms" }))),
        el("div", { class: "columns half" },
          el("div", { class: "card" }, el("h3", {}, "dEI over alpha"), curve(record)),
          el("div", { class: "card" }, el("h3", {}, "Compared with another prompt, edge by edge"), comparison(record))),
      ] : []));
    showTab();
  }

  /** Replaces only the table, so that keyboard focus stays where it is. */
  function showTab() {
    byId("terms")?.replaceChildren(tabs(), table().frame);
    mark();
  }

  /** The table of the current tab, built on first use. */
  function table() {
    tables[state.tab] ??= { edge: edgeTable, node: nodeTable }[state.tab](state.record, state.other, actions);
    return tables[state.tab];
  }

  function chooser(record) {
    const listed = actions.listed();
    const at = listed.indexOf(record);
    const step = (by) => actions.show(listed[clamp(at + by, 0, listed.length - 1)]);
    return el("div", { class: "tools" },
      el("button", { type: "button", onclick: () => step(-1), disabled: at <= 0, "aria-label": "Previous prompt" }, "‹"),
      el("label", {}, "prompt", picker("pick", recordsOf(state.run), record, actions.show)),
      el("button", { type: "button", onclick: () => step(1), disabled: at < 0 || at === listed.length - 1, "aria-label": "Next prompt" }, "›"),
      el("label", {}, "compare with", picker("against", others(record), state.other, actions.compare, "nothing")));
  }

  /** Records to compare with: scored ones of the same circuit, those of this run first. */
  function others(record) {
    const same = RECORDS.filter((other) => other !== record && scored(other) && circuitOf(other) === circuitOf(record));
    return same.sort((a, b) => (a.run !== record.run) - (b.run !== record.run));
  }

  function picker(id, records, chosen, choose, none) {
    const name = (record) => cut(`${record.id}${record.run === state.run ? "" : ` (${runOf(record).label})`}${promptText(record) ? `: ${promptText(record)}` : ""}`, 70);
    return el("select", { id, onchange: (event) => choose(event.target.value === "" ? null : RECORDS[Number(event.target.value)]) },
      none ? el("option", { value: "" }, none) : null, records.map((record) => el("option", { value: INDEX.get(record), selected: record === chosen }, name(record))));
  }

  function tokens(record) {
    const kept = runOf(record).positions;
    const length = record.tokens?.length;
    const out = (index) => (kept === "no_sink" && index === 0) || (kept === "last" && index < length - 1);
    const token = (word, index) => el("span", { class: `token${out(index) ? " out" : ""}`, "data-position": index, title: `position ${index}${out(index) ? ", left out of this run" : ""}` }, word.replaceAll("\n", "⏎"));
    const shown = record.tokens ? record.tokens.map(token) : promptText(record);
    const answer = record.answer ? el("span", { class: "answer" }, "→", el("b", {}, record.answer)) : null;
    const label = record.label === undefined ? null : el("span", { class: "dim" }, ` label: ${record.label}`);
    return shown || answer || label ? el("p", { class: "prompt", "aria-label": promptText(record) }, shown, answer, label) : null;
  }

  /** The same prompt in every configuration, numbers side by side; a click switches between them. */
  function configurations(record) {
    const twins = DATA.runs.map((_, run) => twin(record, run)).filter(Boolean);
    const summary = (entry) => (scored(entry) ? `EICS ${text(value(entry, "eics"))}, C_sh ${text(value(entry, "c_sh"))}` : entry.status);
    return twins.length < 2 ? null : el("div", { class: "twins", role: "radiogroup", "aria-label": "This prompt's configuration" }, twins.map((entry) =>
      el("button", { type: "button", role: "radio", "aria-checked": String(entry === record), onclick: () => actions.run(entry.run) }, el("b", {}, runOf(entry).label), el("small", {}, summary(entry)))));
  }

  function numbers(record) {
    const tile = (name) => {
      const error = errorOf(record, name);
      const against = state.other ? el("small", {}, `${nameOf(state.other, record, 12)}: ${text(value(state.other, name))}`) : null;
      return missing(value(record, name)) ? null : el("div", { class: "tile" }, el("span", {}, NAMES[name]), el("b", {}, text(value(record, name))), error ? el("small", {}, `± ${text(error, 2)}`) : null, against);
    };
    const shown = ([name]) => name !== "share_position_0" || runOf(record).positions === "all";
    const minor = ([name, number]) => el("div", { class: "tile minor" }, el("span", {}, MORE[name] ?? name), el("b", {}, name.startsWith("share") ? percent(number) : text(number)));
    return el("div", { class: "tiles" }, Object.keys(NAMES).map(tile), Object.entries(record.more ?? {}).filter(shown).map(minor));
  }

  function picture(record) {
    if (!drawn) return el("p", {}, circuitOf(record).edges.length ? "It cannot be drawn; its edges are in the table." : "The records have no edges.");
    return [thinning(record), drawn.key, el("div", { class: "picture" }, drawn.picture),
      el("p", { class: "dim" }, "Point at an edge or a node, or press Tab and use the arrow keys: up and down for edges, left and right for nodes, Escape to deselect.")];
  }

  function thinning(record) {
    const order = edgesByShare(record);
    if (order.length <= STEP) return null;
    const carried = order.slice(0, state.limit).reduce((sum, index) => sum + unpack(record).share[index], 0);
    const button = (name, to) => el("button", { type: "button", class: "quiet", onclick: () => actions.limit(to) }, name);
    const left = order.length - state.limit;
    return el("p", { class: "thin", id: "thin" },
      left > 0 ? `Showing the ${state.limit} worst of ${order.length} edges (${percent(Math.min(carried, 0.999))} of the inconsistency); the others are faint until selected.` : `Showing all ${order.length} edges.`,
      left > 0 ? [button(`${Math.min(STEP, left)} more`, state.limit + STEP), button("all", order.length)] : null, state.limit > STEP ? button("fewer", STEP) : null);
  }

  function tabs() {
    const tab = (kind, name) => el("button", { type: "button", role: "tab", id: `tab-${kind}`, "aria-selected": String(state.tab === kind), onclick: () => actions.tab(kind) }, name);
    return el("div", { class: "tabs", role: "tablist" }, tab("edge", "Edges"), tab("node", "Nodes"));
  }

  function curve(record) {
    if (!record.curve) return el("p", { class: "dim" }, "The records have no curve. Score with --curve to get it.");
    const crosses = record.curve.zeros ? "" : "dEI does not cross 0 in this range. ";
    return [drawCurve(record), el("p", { class: "dim" }, crosses, "Vertical axis: linear near 0, logarithmic beyond.")];
  }

  function comparison(record) {
    if (!state.other) return el("p", { class: "dim" }, "Choose a prompt above, after “compare with”: the table then has both shares and their difference, and a plot here has one point per edge.");
    return [drawCompare(record, state.other, actions), el("p", { class: "dim" }, "On the line both prompts agree; above it the edge is worse on the prompt of the vertical axis. Both axes are square roots.")];
  }

  /** Shows the selection in the picture, the table, the card and the prompt. */
  function mark() {
    if (!state.record || !scored(state.record)) return;
    point();
    table().mark(state.term?.kind === state.tab ? state.term.index : null);
    byId("detail").replaceChildren(...(state.term ? describe(state.record, state.term) : worst(state.record)).flat(9));
    const at = state.term?.kind === "node" ? circuitOf(state.record).nodes[state.term.index][4] : null;
    for (const token of document.querySelectorAll(".token")) token.classList.toggle("lit", Boolean(at?.includes(Number(token.dataset.position))));
  }

  /** Highlights what is under the mouse. */
  function point() {
    drawn?.mark(state.term, state.hovered);
    markCompare(state.hovered ?? state.term);
  }

  function worst(record) {
    const lists = unpack(record);
    const byNode = runOf(record).byNode;
    const nodes = () => [...lists.nodeShare.keys()].filter((i) => !Number.isNaN(lists.nodeShare[i])).sort((a, b) => lists.nodeShare[b] - lists.nodeShare[a]);
    const named = byNode
      ? nodes().slice(0, 3).map((i) => `${circuitOf(record).nodes[i]?.[0]} (${percent(lists.nodeShare[i])})`)
      : edgesByShare(record).slice(0, 3).map((i) => `${edgeName(circuitOf(record), i)} (${percent(lists.share[i])})`);
    return [el("b", {}, byNode ? "Worst nodes" : "Worst edges"), el("p", {}, named.join(", ")), el("p", { class: "dim" }, "Select an edge or a node to see its numbers here.")];
  }

  return { render, mark, point, showTab };
}

const MORE = { length: "positions", share_position_0: "share of the first token", kernel_dim: "kernel dimension", lambda2: "λ₂", spectral_gap: "spectral gap", projection_distance: "distance to a section" };
