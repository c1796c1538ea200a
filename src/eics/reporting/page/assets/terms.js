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
    suspected(record, i) ? [" ", el("span", { class: "suspect-name" }, "suspect")] : null,
    record.nodeReason?.[name] ? el("p", {}, `Not judged: ${record.nodeReason[name]}.`) : null,
    el("dl", {}, judged(record) ? [line("z", lists.nodeZ[i], inSigmas), line("p", lists.nodeP[i]), line("r²", lists.nodeR2[i], asR2)] : null, line("EI", lists.ei[i], inNats), line("norm of a_v", lists.norm[i]), line(`share of ${sheafName(record)}`, lists.nodeShare[i], percent), line("squared residual", lists.nodeResidual[i]),
      judged(record) ? null : line("compared with usual", lists.nodeZ[i], (far) => signed(far, inSigmas)),
      line("positions", positions, () => positions.map((t) => tokenAt(record, t)).join(", "))),
  ];
}

/** What a selected node's write says, in the card of a judged prompt: the question after "which node". */
function says(record, term) {
  const tops = term?.kind === "node" && judged(record) ? record.details?.tops[circuitOf(record).nodes[term.index][0]] : null;
  if (!tops?.length) return [];
  return [el("p", { class: "says" }, el("span", { class: "dim" }, "its write favours "), tops.slice(0, SAID).map(([token, logit]) => [el("span", { class: "token", title: `adds ${text(logit, 3)} to the logit` }, token.replaceAll("\n", "⏎")), " "]))];
}

const SAID = 5; // tokens that the card lists
const asR2 = (number) => (missing(number) ? "–" : tidy(number.toFixed(2)));
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

/** A z in its colour, in words for a node that was not judged. */
function zCell(record, index) {
  const z = unpack(record).nodeZ[index];
  const reason = record.nodeReason?.[circuitOf(record).nodes[index][0]];
  if (missing(z)) return reason ? el("span", { class: "dim", title: reason }, "not judged") : "–";
  return el("span", { class: "chip", "data-z": z, style: { background: aboveUsual(z / FAR), color: inkOn(aboveUsual(z / FAR)) } }, inZ(z));
}

const inZ = (z) => tidy(z.toFixed(1));
const nodeName = (record) => ({ name: "node", of: (i) => circuitOf(record).nodes[i][0], show: (i) => (suspected(record, i) ? el("span", { class: "suspect-name" }, circuitOf(record).nodes[i][0]) : circuitOf(record).nodes[i][0]) });

/** What a judged record says of its nodes; in a comparison with another one, both z and their difference. */
function usualColumns(record, other) {
  const lists = unpack(record);
  if (!judged(record)) return [];
  const z = (name, entry, title) => ({ ...numberColumn(name, (i) => unpack(entry).nodeZ[i], undefined, title), show: (i) => zCell(entry, i) });
  if (!other) {
    const reasons = record.nodeReason && { name: "not judged because", of: (i) => record.nodeReason[circuitOf(record).nodes[i][0]] ?? null, show: (i) => record.nodeReason[circuitOf(record).nodes[i][0]] ?? "" };
    return [
      z("z", record, "standard deviations above the mean of the calibration prompts"), numberColumn("p", (i) => lists.nodeP[i], undefined, "share of calibration prompts at least as unusual"),
      numberColumn("r²", (i) => lists.nodeR2[i], asR2, "how much of its write what it reads explains, on the reference prompts"), reasons,
    ];
  }
  const theirs = unpack(other).nodeZ;
  if (!theirs.length) return [z("z", record)];
  const difference = (i) => theirs[i] - lists.nodeZ[i];
  return [z(`z, ${nameOf(record, other, 7)}`, record), z(`z, ${nameOf(other, record, 7)}`, other),
    { name: "difference", title: "second z minus first; sorted by magnitude", number: true, of: (i) => Math.abs(difference(i)), show: (i) => (missing(difference(i)) ? "–" : signed(difference(i), inZ)) }];
}

/** The table of nodes: share, EI and norm; in a comparison, the shares and EI of both prompts. */
function nodeTable(record, other, actions) {
  const lists = unpack(record);
  const theirs = other ? unpack(other) : null;
  const most = largest(lists.nodeShare, theirs?.nodeShare ?? []);
  const both = (name, list, show) => [[record, lists], [other, theirs]].map(([entry, from]) => from?.[list].length &&
    numberColumn(other ? `${name}, ${nameOf(entry, entry === record ? other : record, 7)}` : name, (i) => from[list][i], show));
  const columns = [
    nodeName(record), ...usualColumns(record, other),
    ...both(other ? "share" : `share of ${sheafName(record)}`, "nodeShare", (share) => barred(share, most)),
    ...both(other ? "EI" : "EI (nats)", "ei"),
    ...(other ? [] : both("norm", "norm")),
  ];
  const rows = lists.nodeShare.length ? nodesByBadness(record) : [...circuitOf(record).nodes.keys()];
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
