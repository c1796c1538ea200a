// One prompt: its tokens and numbers, the circuit beside its tables, the curve, and a comparison with another prompt.

function makePrompt(state, actions) {
  let tables = {};
  let drawn = null;

  function render() {
    const record = state.record;
    const complete = record && scored(record);
    const painted = complete ? paintNodes(record, state.colour) : null;
    const paint = (index) => ({ ...painted.paint(index), suspect: suspected(record, index) });
    drawn = complete ? drawCircuit(record, { id: "circuit", label: "The circuit.", limit: state.limit, prune: state.prune, paint, view: state.view, moved: actions.moved }, actions) : null;
    tables = {};
    byId("one").replaceChildren(
      el("h2", {}, "One prompt"),
      record ? el("div", { class: "card lead" }, chooser(record), sentence(record), tokens(record), predictions(record), configurations(record), numbers(record), remarks(record)) : el("p", { class: "card" }, "There is no record to show."),
      ...(complete ? [
        el("div", { class: "columns one" },
          el("div", { class: "card" }, el("h3", {}, "The circuit"), picture(record, painted)),
          el("div", { class: "stack beside" }, el("div", { class: "card detail", id: "detail", role: "status" }), el("div", { class: "card", id: "terms" }))),
        details(record),
        nodesAlone(record) ? "" : el("div", { class: "columns half" },
          el("div", { class: "card" }, el("h3", {}, "dEI over alpha"), curve(record)),
          el("div", { class: "card" }, el("h3", {}, "Compared with another prompt, edge by edge"), comparison(record))),
      ] : []));
    showTab();
    if (drawn) centre(drawn.picture, record, state.term?.kind === "node" ? state.term.index : null);
    if (drawn && state.slides) enlargeLabels(drawn.picture, record);
  }

  /** What the edges are compared with: the other record, if it has the same circuit. */
  const other = () => (state.other && circuitOf(state.other) === circuitOf(state.record) ? state.other : null);

  /** Replaces only the table, so that keyboard focus stays where it is. */
  function showTab() {
    byId("terms")?.replaceChildren(tabs(), table().frame);
    mark();
  }

  const shownTab = () => (nodesAlone(state.record) ? "node" : state.tab);

  /** The table of the current tab, built on first use. */
  function table() {
    tables[shownTab()] ??= { edge: edgeTable, node: nodeTable }[shownTab()](state.record, other(), actions);
    return tables[shownTab()];
  }

  /** What a judged record says, in a sentence. */
  function sentence(record) {
    return judged(record) ? el("p", { class: `verdict${record.suspects.length ? " alarm" : ""}`, id: "verdict" }, record.verdict) : null;
  }

  function chooser(record) {
    const listed = actions.listed();
    const at = listed.indexOf(record);
    const { step } = actions;
    return el("div", { class: "tools" },
      el("button", { type: "button", onclick: () => step(-1), disabled: at <= 0, "aria-label": "Previous prompt" }, "‹"),
      el("label", {}, "prompt", picker("pick", recordsOf(state.run), record, actions.show)),
      el("button", { type: "button", onclick: () => step(1), disabled: at < 0 || at === listed.length - 1, "aria-label": "Next prompt" }, "›"),
      el("label", {}, "compare with", picker("against", others(record), other(), actions.compare, "nothing")));
  }

  /** Records to compare with: scored ones of the same circuit, those of this run first, then whole runs. */
  function others(record) {
    const same = (candidate) => candidate !== record && scored(candidate) && circuitOf(candidate) === circuitOf(record);
    const runs = DATA.runs.map((_, run) => meanOf(run)).filter((mean) => mean.mean > 1 && same(mean));
    return [...RECORDS.filter(same).sort((a, b) => (a.run !== record.run) - (b.run !== record.run)), ...runs];
  }

  function picker(id, records, chosen, choose, none) {
    const name = (record) => cut(`${record.id}${record.run === state.run ? "" : ` (${runOf(record).label})`}${promptText(record) ? `: ${promptText(record)}` : ""}`, 70);
    return el("select", { id, onchange: (event) => choose(event.target.value === "" ? null : records[Number(event.target.value)]) },
      none ? el("option", { value: "" }, none) : null, records.map((record, index) => el("option", { value: index, selected: record === chosen }, name(record))));
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

  /** What the model says next; probabilities as bars. */
  function predictions(record) {
    if (!record.predictions) return null;
    return el("p", { class: "predictions" }, el("span", { class: "dim" }, "The model predicts "), record.predictions.map(([token, probability]) =>
      el("span", { class: "prediction" }, el("span", { class: "token" }, token.replaceAll("\n", "⏎")), el("span", { class: "bar" }, el("i", { "data-probability": probability, style: { width: `${100 * clamp(probability, 0, 1)}%` } })), ` ${percent(probability)}`)));
  }

  /** Why to be careful with this prompt's numbers, or why it has none. */
  function remarks(record) {
    return [record.reason ? el("p", { class: "warning" }, record.reason) : null, (record.warnings ?? []).map((words) => el("p", { class: "warning record" }, el("b", {}, "⚠ "), words)), acrossSettings(record, other())];
  }

  /** The same prompt in every configuration, numbers side by side; a click switches between them. */
  function configurations(record) {
    const twins = DATA.runs.map((_, run) => twin(record, run)).filter(Boolean);
    return twins.length < 2 ? null : el("div", { class: "twins", role: "radiogroup", "aria-label": "This prompt's configuration" }, twins.map((entry) =>
      el("button", { type: "button", role: "radio", "aria-checked": String(entry === record), onclick: () => actions.run(entry.run) }, el("b", {}, runOf(entry).label), el("small", {}, headline(entry)))));
  }

  function numbers(record) {
    const tile = (name) => {
      const error = errorOf(record, name);
      const against = other() ? el("small", {}, `${nameOf(other(), record, 12)}: ${text(value(other(), name))}`) : null;
      const usual = name === "percentile" ? null : record.usual?.[NUMBER[name]];
      return missing(value(record, name)) ? null : el("div", { class: "tile", "data-name": name }, el("span", {}, numberName(record, name)), el("b", {}, text(value(record, name))), error ? el("small", {}, `± ${text(error, 2)}`) : null, missing(usual) ? null : chip(usual, true), against);
    };
    const shown = ([name]) => name !== "share_position_0" || runOf(record).positions === "all";
    const minor = ([name, number]) => el("div", { class: "tile minor" }, el("span", {}, MORE[name] ?? name), el("b", {}, name.startsWith("share") ? percent(number) : text(number)));
    return el("div", { class: "tiles" }, Object.keys(NAMES).map(tile), Object.entries(record.more ?? {}).filter(shown).map(minor));
  }

  function picture(record, painted) {
    if (!drawn) return el("p", {}, circuitOf(record).edges.length ? "It cannot be drawn; its edges are in the table." : "The records have no edges.");
    const name = [slug(runOf(record).label), slug(String(record.id)) || "prompt", "circuit"].filter(Boolean).join("-");
    return [thinning(record), el("div", { class: "tools" }, pruning(record), colours(record), drawn.buttons, exportButtons(drawn.picture, `${record.id}: ${cut(promptText(record), 90)} (${runOf(record).label})`, name)),
      circuitKey(record, drawn.strongest, [nodesAlone(record) ? null : edgeKey(record), painted.key]), el("div", { class: "picture" }, drawn.picture),
      el("p", { class: "dim hint" }, nodesAlone(record) ? "Scored by node alone: the records have no edges. Point at a node, or press Tab and use the arrow keys, Escape to deselect." : "Point at an edge or a node, or press Tab and use the arrow keys: up and down for edges, left and right for nodes, Escape to deselect. Zoom with + and −, or with the wheel after a click.")];
  }

  /** Leaves out edges with a small share; the slider is cubic, because most shares are small. */
  function pruning(record) {
    const order = edgesByShare(record);
    if (!order.length || record.consistent) return null;
    const { share } = unpack(record);
    const tally = (least) => {
      const left = order.filter((index) => share[index] >= least);
      return `${left.length} of ${order.length} edges left${least ? ` (share ≥ ${percent(least)}; ${percent(left.reduce((sum, index) => sum + share[index], 0))} of the inconsistency)` : ""}`;
    };
    const count = el("output", { for: "prune", id: "left" }, tally(state.prune));
    const least = (event) => record.most * (event.target.value / 100) ** 3;
    const slider = el("input", {
      type: "range", id: "prune", min: 0, max: 100, step: 1, value: Math.round(100 * Math.cbrt(Math.min(1, state.prune / record.most))), "aria-valuetext": tally(state.prune),
      oninput: (event) => {
        count.textContent = tally(least(event));
        event.target.setAttribute("aria-valuetext", count.textContent);
      },
      onchange: (event) => actions.prune(least(event)),
    });
    return el("label", { class: "prune" }, "prune by share", slider, count);
  }

  function colours(record) {
    const scales = scalesOf(record);
    if (scales.length < 2) return null;
    const shown = scaleOf(record, state.colour).key;
    return el("label", {}, "node colour", el("select", { id: "colour", onchange: (event) => actions.colour(event.target.value) }, scales.map(({ key, name }) => el("option", { value: key, selected: key === shown }, name))));
  }

  /** Shares by token, and what the selected node attends to and writes, if the run kept it. */
  function details(record) {
    if (!record.details) return el("p", { class: "card dim", id: "no-details" }, NO_DETAILS);
    const strip = positionStrip(record, state, actions);
    return el("div", { class: "columns details" }, strip ? el("div", { class: "card" }, el("h3", {}, "Shares by token"), strip) : null,
      el("div", { class: "card", id: "head" }));
  }

  function thinning(record) {
    const order = edgesByShare(record).filter((index) => unpack(record).share[index] >= state.prune);
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
    if (nodesAlone(state.record)) return el("h3", {}, "Nodes");
    return el("div", { class: "tabs", role: "tablist", "aria-label": "Terms of C_sh" }, tab("edge", "Edges"), tab("node", "Nodes"));
  }

  function curve(record) {
    if (!record.curve) return el("p", { class: "dim" }, "The records have no curve. Score with --curve to get it.");
    const crosses = record.curve.zeros ? "" : "dEI does not cross 0 in this range. ";
    return [drawCurve(record), el("p", { class: "dim" }, crosses, "Vertical axis: linear near 0, logarithmic beyond.")];
  }

  function comparison(record) {
    if (!other()) return el("p", { class: "dim" }, "Choose a prompt above, after “compare with”: the table then has both shares and their difference, and a plot here has one point per edge.");
    if (nodesAlone(other())) return el("p", { class: "dim" }, "The other prompt has no edges; the table of nodes has both.");
    return [acrossSettings(record, other()), drawCompare(record, other(), actions), el("p", { class: "dim" }, "On the line both prompts agree; above it the edge is worse on the prompt of the vertical axis. Both axes are square roots.")];
  }

  /** Shows the selection in the picture, the table, the card and the prompt. */
  function mark() {
    if (!state.record || !scored(state.record)) return;
    point();
    table().mark(state.term?.kind === shownTab() ? state.term.index : null);
    byId("detail").replaceChildren(...[state.term ? [describe(state.record, state.term), againstExpected(state.record, state.term, actions) ?? says(state.record, state.term)] : worst(state.record)].flat(9).filter(Boolean));
    byId("head")?.replaceChildren(el("h3", {}, "The selected node"), ...[headDetails(state.record, state.term)].flat(9));
    const chosen = state.term?.kind === "node" ? circuitOf(state.record).nodes[state.term.index][0] : null;
    for (const row of document.querySelectorAll("#strip tbody tr")) row.setAttribute("aria-selected", String(row.firstElementChild.textContent === chosen));
    const at = state.term?.kind === "node" ? circuitOf(state.record).nodes[state.term.index][4] : null;
    for (const token of document.querySelectorAll(".token")) token.classList.toggle("lit", Boolean(at?.includes(Number(token.dataset.position))));
  }

  /** Highlights what is under the mouse. */
  function point() {
    drawn?.mark(state.term, state.hovered);
    markCompare(state.hovered ?? state.term);
  }

  /** The most unusual nodes of a judged record, with what it says of each. */
  function unusual(record) {
    const { nodeP, nodeR2 } = unpack(record);
    const line = (i) => el("li", {}, el("span", {}, el("span", { class: suspected(record, i) ? "suspect-name" : null }, circuitOf(record).nodes[i][0])), el("span", {}, "z ", zCell(record, i)), el("span", {}, `p ${text(nodeP[i], 3)}`), el("span", {}, `r² ${asR2(nodeR2[i])}`));
    return [el("b", {}, "Most unusual nodes"), el("ol", { class: "worst unusual" }, nodesByBadness(record).slice(0, 5).map(line)), el("p", { class: "dim" }, "Select a node to see its numbers here.")];
  }

  function worst(record) {
    if (judged(record)) return unusual(record);
    const lists = unpack(record);
    const byNode = runOf(record).byNode;
    const nodes = () => [...lists.nodeShare.keys()].filter((i) => !Number.isNaN(lists.nodeShare[i])).sort((a, b) => lists.nodeShare[b] - lists.nodeShare[a]);
    const terms = (byNode ? nodes() : edgesByShare(record)).slice(0, 5);
    const share = byNode ? lists.nodeShare : lists.share;
    const name = (i) => (byNode ? circuitOf(record).nodes[i]?.[0] : edgeName(circuitOf(record), i));
    return [el("b", {}, byNode ? "Worst nodes" : "Worst edges"), el("ol", { class: "worst grid" }, terms.map((i) => el("li", {}, el("span", {}, name(i)), barred(share[i], largest(share))))), el("p", { class: "dim" }, "Select an edge or a node to see its numbers here.")];
  }

  return { render, mark, point, showTab };
}

const MORE = { length: "positions", share_position_0: "share of the first token", kernel_dim: "kernel dimension", lambda2: "λ₂", spectral_gap: "spectral gap", projection_distance: "distance to a section" };
