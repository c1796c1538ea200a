// Descriptions of edges and nodes, and the tables of both.

/** Name and numbers of an edge or node, for the tooltip and for the card beside the picture. */
function describe(record, term) {
  const circuit = circuitOf(record);
  const lists = unpack(record);
  const line = (name, number, show = (shown) => text(shown, 3)) => (missing(number) ? null : [el("dt", {}, name), el("dd", {}, show(number))]);
  const i = term.index;
  if (term.kind === "edge") {
    return [
      el("b", {}, edgeName(circuit, i)),
      Number.isNaN(lists.share[i])
        ? el("p", {}, "left out of C_sh under this linearization")
        : el("dl", {}, line("share of inconsistency", lists.share[i], percent), line("squared residual", lists.residual[i]), line("cosine of ρ a_u and a_v", lists.cosine[i], asCosine),
          line("attribution", circuit.edges[i][3], (score) => text(score)), line("EI of the branch", lists.branch[i], inNats)),
    ];
  }
  const [name, , , kind, positions] = circuit.nodes[i];
  return [
    el("b", {}, name), " ", el("span", { class: "dim" }, KINDS[kind] ?? ""),
    el("dl", {}, line("EI", lists.ei[i], inNats), line("norm of a_v", lists.norm[i]), line("share of C_sh", lists.nodeShare[i], percent), line("squared residual", lists.nodeResidual[i]),
      line("compared with usual", lists.nodeZ[i], (far) => signed(far, inSigmas)),
      line("positions", positions, () => positions.map((t) => tokenAt(record, t)).join(", "))),
  ];
}

const inNats = (number) => `${text(number, 3)} nats`;
const asCosine = (number) => (missing(number) ? "–" : tidy(number.toFixed(2)));
const tokenAt = (record, position) => (record.tokens?.[position] === undefined ? String(position) : `${position} “${record.tokens[position]}”`);
const nameOf = (record, other, length = 9) => (record.id === other.id ? cut(runOf(record).label, length) : cut(String(record.id), length));

/** A share as a bar with its percentage. */
const barred = (share, most) => (missing(share) ? "–" : [el("span", { class: "bar" }, el("i", { "data-share": share, style: { width: `${100 * clamp(share / most, 0, 1)}%`, background: heat(strength(share, most)) } })), el("span", { class: "part" }, percent(share))]);
const largest = (...lists) => Math.max(0, ...lists.flat().filter((share) => !missing(share))) || 1;
const numberColumn = (name, of, show = (number) => text(number, 3), title = null) => ({ name, title, number: true, of, show: (i) => show(of(i)) });

/** The table of edges; in a comparison, both shares and their difference. */
function edgeTable(record, other, actions) {
  const circuit = circuitOf(record);
  const lists = unpack(record);
  const theirs = other ? unpack(other) : null;
  const most = largest(lists.share, theirs?.share ?? []);
  const difference = (i) => theirs.share[i] - lists.share[i];
  const shares = (name, from) => numberColumn(name, (i) => from.share[i], (share) => barred(share, most), "of the squared residual of all edges");
  const name = { name: "edge", of: (i) => edgeName(circuit, i) };
  const columns = other
    ? [name, shares(nameOf(record, other), lists), shares(nameOf(other, record), theirs),
      { ...numberColumn("difference", (i) => Math.abs(difference(i))), title: "second share minus first; sorted by magnitude", show: (i) => percent(difference(i)) }]
    : [name, shares("share", lists), numberColumn("residual", (i) => lists.residual[i], undefined, "squared, in the metric of the run"),
      record.angles && numberColumn("cosine", (i) => lists.cosine[i], asCosine, "of rho a_u and a_v"),
      circuit.edges.some((edge) => !missing(edge[3])) && numberColumn("attribution", (i) => circuit.edges[i][3])];
  return termTable("edge", "Edges", columns, edgesByShare(record), actions);
}

/** The table of nodes: share, EI and norm; in a comparison, the shares and EI of both prompts. */
function nodeTable(record, other, actions) {
  const circuit = circuitOf(record);
  const lists = unpack(record);
  const theirs = other ? unpack(other) : null;
  const most = largest(lists.nodeShare, theirs?.nodeShare ?? []);
  const both = (name, list, show) => [[record, lists], [other, theirs]].map(([entry, from]) => from?.[list].length &&
    numberColumn(other ? `${name}, ${nameOf(entry, entry === record ? other : record, 7)}` : name, (i) => from[list][i], show));
  const columns = [
    { name: "node", of: (i) => circuit.nodes[i][0] },
    ...both(other ? "share" : "share of C_sh", "nodeShare", (share) => barred(share, most)),
    ...both(other ? "EI" : "EI (nats)", "ei"),
    ...(other ? [] : both("norm", "norm")),
  ];
  const rows = [...circuit.nodes.keys()];
  if (lists.nodeShare.length) rows.sort((a, b) => (lists.nodeShare[b] || 0) - (lists.nodeShare[a] || 0));
  return termTable("node", "Nodes", columns, rows, actions);
}

const SORTING = { edge: {}, node: {}, versus: { name: "B − A", down: true } };

function termTable(kind, caption, columns, rows, actions) {
  const table = makeTable({
    caption, columns: columns.filter(Boolean), sorting: SORTING[kind], key: (index) => index,
    choose: (index) => actions.choose({ kind, index }), hover: (index) => actions.hover(index === null ? null : { kind, index }),
  });
  table.set(rows);
  return table;
}
