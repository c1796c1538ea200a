// What `--details` keeps: shares by token, the attention pattern of a head, the top tokens of a write.

const NO_DETAILS = "The records have no shares by token, attention patterns or top tokens. Score with --details to keep them.";

const tokenColumn = (record, position) => ({ name: record.tokens?.[position] === undefined ? String(position) : asToken(record.tokens[position]), title: `position ${tokenAt(record, position)}` });
const positionsOf = (record, node) => halves(record.details?.positions?.[node]);

/** Shares of C_sh by node and token: which token makes a node inconsistent. */
function positionStrip(record, state, actions) {
  const nodes = circuitOf(record).nodes;
  const order = [...nodes.keys()].filter((index) => record.details.positions[nodes[index][0]]);
  if (!order.length) return null;
  const shares = new Map(order.map((index) => [index, positionsOf(record, nodes[index][0])]));
  const sum = (index) => shares.get(index).reduce((total, share) => total + share, 0);
  const most = Math.max(...order.flatMap((index) => shares.get(index).map(Math.abs)));
  const length = Math.max(...order.map((index) => shares.get(index).length));
  order.sort((a, b) => sum(b) - sum(a));
  return [
    matrix({
      id: "strip", caption: `Share of ${judged(record) ? "the squared residual" : "C_sh"} by node and token, in percent`, corner: judged(record) ? "% of residual" : "% of C_sh", most, columns: Array.from({ length }, (_, position) => tokenColumn(record, position)),
      rows: order.map((index) => ({
        name: nodes[index][0], title: `${percent(sum(index))} in all`, cells: shares.get(index),
        choose: () => actions.choose({ kind: "node", index }), selected: state.term?.kind === "node" && state.term.index === index,
      })),
    }),
    el("p", { class: "dim" }, `${judged(record) ? "What a node’s parents leave unexplained, by token, before it is compared with usual: not a part of C_ref." : "A row adds up to the node’s share."} Select a node’s name to find it in the circuit. A dot is too small for a digit.`),
  ];
}

/** The pattern of the selected head and the tokens that its write favours. */
function headDetails(record, term) {
  if (term?.kind !== "node") return el("p", { class: "dim" }, "Select a node: its top tokens appear here, and for a head its attention pattern.");
  const [name, , , kind] = circuitOf(record).nodes[term.index];
  const pattern = record.details.patterns[name];
  const tops = record.details.tops[name];
  return [
    el("h4", {}, `${name}: attention pattern`),
    pattern ? attention(record, name, pattern) : el("p", { class: "dim" }, kind === "head" ? "This head has none in the record." : "Only heads have one."),
    el("h4", {}, `${name}: top tokens of its write`),
    tops?.length ? topTokens(name, tops) : el("p", { class: "dim" }, "This node has none in the record."),
  ];
}

function attention(record, name, pattern) {
  const weights = halves(pattern.weights);
  let at = 0;
  const rows = pattern.queries.map((query, index) => {
    const cells = weights.slice(at, (at += pattern.lengths[index]));
    const { name: token, title } = tokenColumn(record, query);
    return { name: cut(token, 14), title, cells: [...cells, ...Array.from({ length: pattern.keys - cells.length }, () => 0)] };
  });
  const columns = Array.from({ length: pattern.keys }, (_, position) => tokenColumn(record, position));
  return [
    matrix({ id: "pattern", caption: `Attention of ${name}, in percent: a row for each query, a column for each key`, corner: "%: query ↓ key →", most: 1, columns, rows }),
    el("p", { class: "dim" }, "Each row is where one token (the query) looks."),
  ];
}

function topTokens(name, tops) {
  const most = Math.max(...tops.map(([, logit]) => Math.abs(logit))) || 1;
  return [
    el("table", { class: "tops", id: "tops" }, el("caption", { class: "unseen" }, `Tokens that the write of ${name} favours most`), el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "token"), el("th", { scope: "col" }, "logit"), el("td"))),
      el("tbody", {}, tops.map(([token, logit]) => el("tr", {}, el("th", { scope: "row" }, el("span", { class: "token" }, token.replaceAll("\n", "⏎"))), el("td", { class: "number" }, text(logit, 3)),
        el("td", {}, el("span", { class: "bar" }, el("i", { class: logit < 0 ? "negative" : null, style: { width: `${(100 * Math.abs(logit)) / most}%` } }))))))),
    el("p", { class: "dim" }, "Logit lens: what this write alone adds to the logit of each token."),
  ];
}
