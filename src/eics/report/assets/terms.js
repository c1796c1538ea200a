// What is said of an edge or a node, and the two tables of them.

/** Names and numbers of a term, for the tooltip and for the card below the picture. */
function describe(record, term) {
  const circuit = circuitOf(record);
  const lists = unpack(record);
  const line = (name, shown) => (shown === null ? null : [el("dt", {}, name), el("dd", {}, shown)]);
  const known = (number, show = text) => (missing(number) ? null : show(number));
  const i = term.index;
  if (term.kind === "edge") {
    const carries = !Number.isNaN(lists.share[i]);
    return [
      el("b", {}, edgeName(circuit, i)),
      carries
        ? el("dl", {}, line("share of inconsistency", percent(lists.share[i])), line("squared residual", text(lists.share[i] * record.total, 3)),
          line("cosine of ρ a_u and a_v", known(lists.cosine[i], (c) => text(c, 3))), line("attribution", known(circuit.edges[i][3])), line("EI of the branch", known(lists.branch[i], inNats)))
        : el("p", {}, "carries nothing under this linearization"),
    ];
  }
  const [name, , , kind, positions] = circuit.nodes[i];
  return [
    el("b", {}, name), " ", el("span", { class: "dim" }, { head: "attention head", mlp: "MLP", input: "embeddings", logits: "read-out" }[kind] ?? ""),
    el("dl", {}, line("EI", known(lists.ei[i], inNats)), line("norm of a_v", known(lists.norm[i])), line("share of C_sh", known(lists.nodeShare[i], percent)),
      line("squared residual", known(lists.nodeResidual[i])), line("positions", positions ? positions.map((t) => tokenAt(record, t)).join(", ") : null)),
  ];
}

const inNats = (number) => `${text(number)} nats`;
const tokenAt = (record, position) => (record.tokens?.[position] === undefined ? String(position) : `${position} “${record.tokens[position]}”`);

const bar = (share, most) => el("span", { class: "bar" }, el("i", { style: { width: `${100 * clamp(share / most, 0, 1)}%`, background: heat(share / most) } }));

/** The table of edges; with another prompt, both shares and their difference. */
function edgeTable(record, other, limit, actions) {
  const circuit = circuitOf(record);
  const lists = unpack(record);
  const theirs = other ? unpack(other) : null;
  const order = edgesByShare(record);
  const most = Math.max(...order.map((i) => lists.share[i]), ...(theirs ? theirs.share.filter((s) => !Number.isNaN(s)) : [])) || 1;
  const attributed = circuit.edges.some((edge) => !missing(edge[3]));
  const difference = (i) => theirs.share[i] - lists.share[i];
  const columns = [
    { name: "edge", of: (i) => edgeName(circuit, i) },
    attributed && !other && { name: "attribution", number: true, of: (i) => circuit.edges[i][3], show: (i) => text(circuit.edges[i][3], 3) },
    !other && { name: "residual", title: "squared, in the metric of the run", number: true, of: (i) => lists.share[i] * record.total, show: (i) => text(lists.share[i] * record.total, 3) },
    { name: other ? `share, ${cut(String(record.id), 9)}` : "share", title: "of all edges' squared residuals", number: true, of: (i) => lists.share[i], show: (i) => [bar(lists.share[i], most), percent(lists.share[i])] },
    other && { name: `share, ${cut(String(other.id), 9)}`, number: true, of: (i) => theirs.share[i], show: (i) => [bar(theirs.share[i], most), percent(theirs.share[i])] },
    other && { name: "difference", title: `${other.id} minus ${record.id}; sorted by size`, number: true, of: (i) => Math.abs(difference(i)), show: (i) => percent(difference(i)) },
    !other && lists.cosine.length && { name: "cosine", title: "of rho a_u and a_v", number: true, of: (i) => lists.cosine[i], show: (i) => text(lists.cosine[i], 2) },
  ].filter(Boolean);
  return termTable("edge", "Edges", columns, order.slice(0, limit), actions);
}

function nodeTable(record, other, actions) {
  const circuit = circuitOf(record);
  const lists = unpack(record);
  const theirs = other ? unpack(other) : null;
  const shares = lists.nodeShare.filter((share) => !Number.isNaN(share));
  const most = Math.max(0, ...shares) || 1;
  const column = (name, list, show = text, from = lists) => from[list].length && { name, number: true, of: (i) => from[list][i], show: (i) => show(from[list][i]) };
  const share = (name, from) => column(name, "nodeShare", (s) => (missing(s) ? "–" : [bar(Math.max(0, s), most), percent(s)]), from);
  const columns = [
    { name: "node", of: (i) => circuit.nodes[i][0] },
    share(other ? `share, ${cut(String(record.id), 9)}` : "share of C_sh", lists), other && share(`share, ${cut(String(other.id), 9)}`, theirs),
    column(other ? `EI, ${cut(String(record.id), 7)}` : "EI (nats)", "ei", (nats) => text(nats, 3)), other && column(`EI, ${cut(String(other.id), 7)}`, "ei", (nats) => text(nats, 3), theirs), !other && column("norm", "norm"),
  ].filter(Boolean);
  const rows = [...circuit.nodes.keys()];
  if (shares.length) rows.sort((a, b) => (lists.nodeShare[b] || 0) - (lists.nodeShare[a] || 0));
  return termTable("node", "Nodes", columns, rows, actions);
}

function termTable(kind, caption, columns, rows, actions) {
  const table = makeTable({
    caption, columns, key: (index) => index, most: 1000,
    choose: (index) => actions.choose({ kind, index }), hover: (index) => actions.hover(index === null ? null : { kind, index }),
  });
  table.set(rows);
  return table;
}
