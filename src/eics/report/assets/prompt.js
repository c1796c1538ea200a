// One prompt: its tokens and numbers, the circuit with the tables beside it, the curve, and another prompt against it.

function makePrompt(state, actions) {
  let tables = {};

  function render() {
    const record = state.record;
    const place = byId("one");
    if (!record) return place.replaceChildren(el("h2", {}, "One prompt"), el("p", { class: "card" }, "There is no record to show."));
    const drawn = scored(record) ? drawCircuit(record, state.limit, actions) : null;
    tables = scored(record) ? { edge: edgeTable(record, state.other, state.limit, actions), node: nodeTable(record, state.other, actions) } : {};
    place.replaceChildren(
      el("h2", {}, "One prompt"),
      el("div", { class: "card" }, chooser(record), tokens(record), numbers(record), record.reason ? el("p", { class: "warning" }, record.reason) : null),
      ...(scored(record) ? [
        el("div", { class: "columns one" },
          el("div", { class: "card" }, el("h3", {}, "The circuit"), drawn ? [thinning(record), circuitKey(drawn, record), el("div", { class: "picture" }, drawn.picture), el("p", { class: "dim" }, "Point at an edge or a node, or press Tab and use the arrow keys: up and down for edges, left and right for nodes, Escape to let go.")] : el("p", {}, "It cannot be drawn; the table has its edges.")),
          el("div", { class: "stack beside" },
            el("div", { class: "card detail", id: "detail", role: "status" }),
            el("div", { class: "card", id: "terms" }))),
        el("div", { class: "columns half" },
          el("div", { class: "card" }, el("h3", {}, "dEI over alpha"), record.curve ? [drawCurve(record), el("p", { class: "dim" }, record.curve.zeros.length ? "Vertical axis: linear near 0, logarithmic beyond." : "dEI does not cross 0 in this range. Vertical axis: linear near 0, logarithmic beyond.")] : el("p", { class: "dim" }, "The records hold no curve. Score with --curve to have it.")),
          el("div", { class: "card" }, el("h3", {}, "Against another prompt, edge by edge"), comparison(record))),
      ] : []));
    showTab();
    return undefined;
  }

  /** Only the table changes, so that the keyboard stays where it is. */
  function showTab() {
    byId("terms")?.replaceChildren(tabs(), tables[state.tab].frame);
    mark();
  }

  function chooser(record) {
    const listed = actions.listed();
    const at = listed.indexOf(record);
    const step = (by) => actions.show(listed[clamp(at + by, 0, listed.length - 1)]);
    const all = recordsOf(state.run);
    return el("div", { class: "tools" },
      el("button", { type: "button", onclick: () => step(-1), disabled: at <= 0, "aria-label": "Previous prompt" }, "‹"),
      el("label", {}, "prompt", picker("pick", all, record, (chosen) => actions.show(chosen))),
      el("button", { type: "button", onclick: () => step(1), disabled: at < 0 || at === listed.length - 1, "aria-label": "Next prompt" }, "›"),
      el("label", {}, "against", picker("against", others(record), state.other, (chosen) => actions.compare(chosen), "no other")));
  }

  /** What can be compared: records of the same circuit, those of this run first. */
  function others(record) {
    const same = DATA.records.filter((other) => other !== record && scored(other) && circuitOf(other) === circuitOf(record));
    return same.sort((a, b) => (a.run !== record.run) - (b.run !== record.run));
  }

  function picker(id, records, chosen, choose, none) {
    const name = (record) => cut(`${record.id}${record.run === state.run ? "" : ` (${DATA.runs[record.run].label})`}${promptText(record) ? `: ${promptText(record)}` : ""}`, 70);
    return el("select", { id, onchange: (event) => choose(event.target.value === "" ? null : DATA.records[Number(event.target.value)]) },
      none ? el("option", { value: "" }, none) : null, records.map((record) => el("option", { value: PLACE.get(record), selected: record === chosen }, name(record))));
  }

  function tokens(record) {
    const kept = DATA.runs[record.run].options.positions;
    const out = (index, length) => (kept === "no_sink" && index === 0) || (kept === "last" && index < length - 1);
    if (!record.tokens) return record.prompt ? el("p", { class: "prompt" }, record.prompt) : null;
    return el("p", { class: "prompt", "aria-label": record.prompt ?? record.tokens.join("") }, record.tokens.map((token, index) =>
      el("span", { class: `token${out(index, record.tokens.length) ? " out" : ""}`, "data-position": index, title: `position ${index}${out(index, record.tokens.length) ? ", left out of the run" : ""}` }, token.replaceAll("\n", "⏎"))),
    record.answer ? el("span", { class: "answer" }, "→", el("b", {}, record.answer)) : null, record.label !== undefined ? el("span", { class: "dim" }, ` label: ${record.label}`) : null);
  }

  function numbers(record) {
    const tile = (name) => {
      const error = record.errors?.[name];
      const against = state.other ? el("small", {}, `${cut(String(state.other.id), 12)}: ${text(value(state.other, name))}`) : null;
      return missing(value(record, name)) ? null : el("div", { class: "tile" }, el("span", {}, NAMES[name]), el("b", {}, text(value(record, name))), error ? el("small", {}, `± ${text(error, 2)}`) : null, against);
    };
    const told = (name) => name !== "share_position_0" || DATA.runs[record.run].options.positions === "all";
    const more = Object.entries(record.more ?? {}).filter(([name]) => told(name)).map(([name, number]) => el("div", { class: "tile minor" }, el("span", {}, MORE[name] ?? name), el("b", {}, name.startsWith("share") ? percent(number) : text(number))));
    return el("div", { class: "tiles" }, ["eics", "c_sh", "dei", "ei_macro", "emergence_ratio", "percentile"].map(tile), more);
  }

  function thinning(record) {
    const order = edgesByShare(record);
    if (order.length <= STEP) return null;
    const carried = order.slice(0, state.limit).reduce((sum, index) => sum + unpack(record).share[index], 0);
    const ask = (name, to) => el("button", { type: "button", class: "quiet", onclick: () => actions.limit(to) }, name);
    const left = order.length - state.limit;
    return el("p", { class: "thin", id: "thin" }, left > 0 ? `Showing the ${state.limit} worst of ${order.length} edges, which make ${percent(carried)} of the inconsistency; the others are faint. ` : `Showing all ${order.length} edges. `,
      left > 0 ? [ask(`${Math.min(STEP, left)} more`, state.limit + STEP), ask("all", order.length)] : ask("fewer", STEP));
  }

  function tabs() {
    const tab = (kind, name) => el("button", { type: "button", role: "tab", id: `tab-${kind}`, "aria-selected": String(state.tab === kind), onclick: () => actions.tab(kind) }, name);
    return el("div", { class: "tabs", role: "tablist" }, tab("edge", "Edges"), tab("node", "Nodes"));
  }

  function comparison(record) {
    if (!state.other) return el("p", { class: "dim" }, "Choose another prompt above, after “against”: the table gets both shares and their difference, and here is a point for each edge.");
    return [drawCompare(record, state.other, actions), el("p", { class: "dim" }, "On the line both prompts agree; above it the edge is worse on the other prompt. Axes are square roots.")];
  }

  function mark() {
    if (!state.record || !scored(state.record)) return;
    markCircuit(state.record, state.term, state.hovered);
    markCompare(state.hovered ?? state.term);
    tables[state.tab].mark(state.term?.kind === state.tab ? state.term.index : null);
    const box = byId("detail");
    const shown = state.hovered ?? state.term;
    box.replaceChildren(...(shown ? describe(state.record, shown) : worst(state.record)).flat(9));
    const at = shown?.kind === "node" ? circuitOf(state.record).nodes[shown.index][4] : null;
    for (const token of document.querySelectorAll(".token")) token.classList.toggle("lit", Boolean(at?.includes(Number(token.dataset.position))));
  }

  function worst(record) {
    const named = edgesByShare(record).slice(0, 3).map((index) => `${edgeName(circuitOf(record), index)} (${percent(unpack(record).share[index])})`);
    return [el("b", {}, "Worst edges"), el("p", {}, named.join(", ")), el("p", { class: "dim" }, "Choose an edge or a node to see its numbers here.")];
  }

  return { render, mark, showTab };
}

const MORE = { length: "positions", share_position_0: "first token's share", kernel_dim: "kernel dimension", lambda2: "λ₂", spectral_gap: "spectral gap", projection_distance: "distance to a section" };
