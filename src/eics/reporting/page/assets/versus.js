// Which nodes differ between two prompts or two runs: A and B, a picture coloured by B - A, and a table of both.

const MEASURES = {
  share: { name: "share", show: percent, title: "share of C_sh, or of the edges into the node if C_sh is taken by edge" },
  residual: { name: "squared residual", show: (number) => text(number, 3), title: "in the metric of the run" },
  z: { name: "z", show: (number) => (missing(number) ? "–" : inZ(number)), title: "how unusual the write is, in standard deviations over the calibration prompts" },
  norm: { name: "norm of the write", show: (number) => text(number, 3), title: "||a_v||" },
};

const nameOfSubject = (record) => (record.mean ? `${runOf(record).label}, ${record.id}` : `${record.id}${DATA.runs.length > 1 ? ` (${runOf(record).label})` : ""}`);

function makeVersus(state, actions) {
  let drawn = null;
  let table = null;

  function render() {
    const [a, b] = [state.base ?? state.record, state.other];
    const possible = RECORDS.filter(scored).length > 1 && a;
    drawn = table = null;
    byId("versus").replaceChildren(...(possible ? [el("h2", {}, "Which nodes differ"), el("div", { class: "card" }, chooser(a, b), ...remarks(a, b)), ...(b && scored(a) ? figures(a, b) : [])] : []));
    if (drawn) centre(drawn.picture, a, pickedTerm()?.kind === "node" ? pickedTerm().index : null);
    mark();
  }

  function chooser(a, b) {
    const measure = ([key, { name }]) => el("option", { value: key, selected: key === measureOf(a, b) }, name);
    return el("div", { class: "tools" },
      el("label", {}, "A", subjects("versus-a", a, actions.base)),
      el("label", {}, "B", subjects("versus-b", b, actions.compare, "nothing")),
      el("label", {}, "by", el("select", { id: "versus-by", onchange: (event) => actions.measure(event.target.value) }, Object.entries(MEASURES).filter(([key]) => key !== "z" || bothJudged(a, b)).map(measure))));
  }

  const bothJudged = (a, b) => [a, b ?? a].every((record) => scored(record) && runOf(record).judged && unpack(record).nodeZ.length > 0);

  /** What to compare: the reader's choice, or z if both sides have it. */
  function measureOf(a, b) {
    const fits = state.measure !== null && (state.measure !== "z" || bothJudged(a, b));
    return fits ? state.measure : bothJudged(a, b) ? "z" : "share";
  }

  /** Every prompt of every run, and every run as the mean of its prompts. */
  function subjects(id, chosen, choose, none) {
    const option = (key, record) => el("option", { value: key, selected: record === chosen }, cut(record.mean ? `${runOf(record).label}, ${record.id}` : `${record.id}${promptText(record) ? `: ${promptText(record)}` : ""}`, 70));
    const at = (key) => (key === "" ? null : key.startsWith("run") ? meanOf(Number(key.slice(3))) : RECORDS[Number(key)]);
    return el("select", { id, onchange: (event) => choose(at(event.target.value)) }, none ? el("option", { value: "" }, none) : null,
      el("optgroup", { label: "Whole runs" }, DATA.runs.map((_, run) => option(`run${run}`, meanOf(run)))),
      DATA.runs.map((run, number) => el("optgroup", { label: cut(run.label, 60) }, recordsOf(number).filter(scored).map((record) => option(INDEX.get(record), record)))));
  }

  function remarks(a, b) {
    if (!b) return [el("p", { class: "dim" }, "Choose B: a prompt, the same prompt in another run, or a whole run. The picture then shows where B is larger or smaller than A.")];
    const ids = (record) => new Set(recordsOf(record.run).filter(scored).map(({ id }) => id));
    const [ours, theirs] = [ids(a), ids(b)];
    const common = [...ours].filter((id) => theirs.has(id)).length;
    const uneven = a.mean && b.mean && (common < ours.size || common < theirs.size);
    return [acrossSettings(a, b), uneven ? el("p", { class: "warning" }, el("b", {}, "Different prompts. "), `The runs have ${common} prompts in common, of ${ours.size} and ${theirs.size}: their means are over different prompts.`) : null].filter(Boolean);
  }

  function figures(a, b) {
    const by = measureOf(a, b);
    const { name, show, title } = MEASURES[by];
    const [ours, theirs] = [byName(a, by), byName(b, by)];
    const difference = (node) => (theirs.get(node) ?? NaN) - (ours.get(node) ?? NaN);
    const compared = (node) => (ours.has(node) && theirs.has(node) ? signed(difference(node), show) : theirs.has(node) ? "only in B" : ours.has(node) ? "only in A" : "–");
    const names = [...new Set([...circuitOf(a).nodes, ...circuitOf(b).nodes].map(([node]) => node))];
    const most = Math.max(0, ...names.map((node) => Math.abs(difference(node))).filter((size) => !missing(size)));
    const paint = (index) => {
      const node = circuitOf(a).nodes[index][0];
      const far = difference(node);
      if (missing(far)) return { absent: ours.has(node) };
      return { fill: away(most ? far / most : 0), ink: inkOn(away(most ? far / most : 0)), note: most && Math.abs(far) >= 0.1 * most ? signed(far, show) : null, value: far };
    };
    const edges = edgeColours(a, b, by);
    drawn = drawCircuit(a, { id: "versus-circuit", label: `The circuit, coloured by ${name} of B minus A.`, limit: STEP, prune: 0, paint, view: state.viewB, moved: actions.moved, ...edges }, termActions());
    const columns = [
      { name: "node", of: (node) => node },
      numberColumn("A", (node) => ours.get(node), show, nameOfSubject(a)), numberColumn("B", (node) => theirs.get(node), show, nameOfSubject(b)),
      { name: "B − A", title: "sorted by size", number: true, of: (node) => Math.abs(difference(node)), show: (node) => el("span", { "data-difference": difference(node) }, compared(node)) },
    ];
    table = makeTable({ caption: `${name} of every node in A and B`, columns, sorting: SORTING.versus, key: (node) => node, choose: chooseNode });
    table.set(names);
    const legend = most ? colourKey(`node colour: ${name}, B − A`, gradient(away, -1), [`▼ ${show(most)}`, "equal", `▲ ${show(most)}`]) : el("b", {}, "A and B are equal at every node.");
    return [el("div", { class: "columns one" },
      el("div", { class: "card" }, el("h3", {}, `${nameOfSubject(b)} minus ${nameOfSubject(a)}`), drawn ? [
        el("div", { class: "key" }, legend, edges.order.length ? el("div", { class: "scale" }, el("span", {}, "edge colour"), el("small", {}, "the same, by edge; the 60 largest differences")) : null),
        el("div", { class: "tools" }, drawn.buttons, exportButtons(drawn.picture, `${name}: ${nameOfSubject(b)} minus ${nameOfSubject(a)}`, slug(`${b.id}-minus-${a.id}`) || "difference")),
        el("div", { class: "picture" }, drawn.picture)] : el("p", {}, "The circuit cannot be drawn.")),
      el("div", { class: "stack beside" }, el("div", { class: "card", id: "versus-table" }, el("p", { class: "dim" }, `${name}: ${title.replaceAll("C_sh", sheafName(a))}. A: ${nameOfSubject(a)}. B: ${nameOfSubject(b)}.`), table.frame)))];
  }

  const sameCircuit = (a, b) => circuitOf(a) === circuitOf(b);
  const byName = (record, by) => new Map(circuitOf(record).nodes.map(([name], index) => [name, ofNodes(record, by)[index]]).filter(([, number]) => !missing(number)));

  /** Edges are coloured by their difference too, if both have them. */
  function edgeColours(a, b, by) {
    if (!sameCircuit(a, b) || by === "norm" || by === "z") return { order: [] };
    const far = unpack(a)[by].map((ours, index) => unpack(b)[by][index] - ours);
    const order = [...far.keys()].filter((index) => !missing(far[index])).sort((i, j) => Math.abs(far[j]) - Math.abs(far[i]));
    const most = Math.abs(far[order[0]]) || 1;
    return { order, colourOf: (index) => away(far[index] / most) };
  }

  const termActions = () => ({ choose: (term) => chooseTerm(term), hover: () => {}, selected: () => pickedTerm() });

  const nodesOf = (record) => (record ? circuitOf(record).nodes.map(([name]) => name) : []);
  const pickedName = () => (state.term?.kind === "node" ? nodesOf(state.record)[state.term.index] : null);

  function pickedTerm() {
    const [a, name] = [state.base ?? state.record, pickedName()];
    if (state.term?.kind === "edge" && a && circuitOf(a) === circuitOf(state.record)) return state.term;
    const index = name === null ? -1 : nodesOf(a).indexOf(name);
    return index < 0 ? null : { kind: "node", index };
  }

  function chooseTerm(term) {
    if (term?.kind === "node") chooseNode(circuitOf(state.base ?? state.record).nodes[term.index][0]);
    else if (!term || circuitOf(state.base ?? state.record) === circuitOf(state.record)) actions.choose(term);
  }

  /** Selects a node by name in the prompt's circuit too, if that has it. */
  function chooseNode(name) {
    const index = nodesOf(state.record).indexOf(name);
    if (index >= 0) actions.choose({ kind: "node", index });
  }

  function mark() {
    drawn?.mark(pickedTerm(), null);
    table?.mark(pickedName());
  }

  return { render, mark };
}
