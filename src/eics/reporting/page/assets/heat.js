// Nodes x tokens as a heat map. Cells of a colour are one path, so that tens of thousands of them stay quick.

const LEVELS = 24;
const ROW_TALL = 18;
const NARROWEST = 15; // pixels of a token's column
const BROADEST = 34;
const PAPER_COLUMNS = 40; // tokens of a block on paper, which cannot scroll

/** Thin stripes, which no colour of the scale can be taken for. */
const hatching = (id) => svg("defs", {}, svg("pattern", { id, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("line", { x1: 1, x2: 1, y1: 0, y2: 5, class: "stripe" })));

/**
 * @param {{given: Object, rows: number[], node: number|null, token: number|null, choose: (node: number, token: number|null) => void, wide: number}} options
 */
function drawHeat(options) {
  const { given, rows, choose } = options;
  const length = given.tokens.length;
  const column = clamp(Math.floor((options.wide - 110) / length), NARROWEST, BROADEST);
  if (!onPaper.matches) return heatBlock(given, rows, 0, length, column, choose);
  const blocks = Array.from({ length: Math.ceil(length / PAPER_COLUMNS) }, (_, index) => heatBlock(given, rows, index * PAPER_COLUMNS, Math.min(length, (index + 1) * PAPER_COLUMNS), NARROWEST, choose));
  return { element: el("div", { class: "blocks" }, blocks.map(({ element }) => element)), mark: (node, token) => blocks.forEach(({ mark }) => mark(node, token)) };
}

function heatBlock(given, rows, from, to, column, choose) {
  const { z, suspects } = traceOf(given);
  const [wide, tall] = [(to - from) * column, rows.length * ROW_TALL];
  const marks = svg("g", {});
  const cells = svg("svg", { class: "cells", viewBox: `0 0 ${wide} ${tall}`, width: wide, height: tall, tabindex: 0, role: "group", "aria-roledescription": "heat map", "aria-label": `z of ${rows.length} nodes at ${to - from} tokens. Arrow keys move; the value is read out.` }, hatching(`hatch-${from}`), paths(), rings(), marks);
  const names = rows.map((node) => el("button", { type: "button", tabindex: -1, "data-node": DATA.nodes[node], "aria-pressed": "false", style: { height: `${ROW_TALL}px` }, onclick: () => choose(node, null) }, DATA.nodes[node]));
  const heads = given.tokens.slice(from, to).map((word, index) => el("span", { class: suspects.has(from + index) ? "suspect" : null, style: { width: `${column}px` }, title: `token ${from + index}`, onclick: () => choose(null, from + index) }, cut(asToken(word), 13)));
  const element = el("div", { class: "heat", role: "region", "aria-label": "Nodes and tokens" }, el("div", { class: "corner" }, "node / token"), el("div", { class: "heads", "aria-hidden": "true" }, heads), el("div", { class: "names" }, names), cells);
  let cursor = { row: 0, token: from };

  function paths() {
    const parts = Array.from({ length: LEVELS + 1 }, () => []);
    const unjudged = [];
    for (const [row, node] of rows.entries()) for (let token = from; token < to; token++) {
      const one = z(node, token);
      const square = `M${(token - from) * column} ${row * ROW_TALL}h${column - 0.6}v${ROW_TALL - 0.6}h${0.6 - column}z`;
      if (missing(one)) unjudged.push(square);
      else parts[Math.round(clamp(one / FULL, 0, 1) * LEVELS)].push(square);
    }
    return [svg("path", { d: unjudged.join("") || "M0 0", class: "unjudged", fill: `url(#hatch-${from})` }), parts.map((squares, level) => (squares.length ? svg("path", { d: squares.join(""), fill: unusualness(level / LEVELS), "data-level": level }) : null))];
  }

  function rings() {
    const rowOf = new Map(rows.map((node, row) => [node, row]));
    const drawn = given.suspects.filter(([node, token]) => rowOf.has(node) && token >= from && token < to);
    return [
      drawn.map(([node, token]) => svg("rect", { x: (token - from) * column + 0.7, y: rowOf.get(node) * ROW_TALL + 0.7, width: column - 2, height: ROW_TALL - 2, class: "ring" })),
      given.generated !== null && given.generated > from && given.generated < to ? svg("line", { x1: (given.generated - from) * column - 0.3, x2: (given.generated - from) * column - 0.3, y1: 0, y2: tall, class: "cut" }) : null,
    ];
  }

  function under(event) {
    const box = cells.getBoundingClientRect();
    return { row: clamp(Math.floor(((event.clientY - box.top) / box.height) * rows.length), 0, rows.length - 1), token: clamp(from + Math.floor(((event.clientX - box.left) / box.width) * (to - from)), from, to - 1) };
  }

  const says = ({ row, token }) => `${DATA.nodes[rows[row]]} at token ${token}, “${asToken(given.tokens[token])}”: z ${asZ(z(rows[row], token))}`;
  cells.addEventListener("mousemove", (event) => showTip([says(under(event))], event));
  cells.addEventListener("mouseleave", () => showTip(null));
  cells.addEventListener("click", (event) => {
    cursor = under(event);
    choose(rows[cursor.row], cursor.token);
  });
  cells.addEventListener("keydown", (event) => {
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [0, 0];
    if (!down && !right) return;
    event.preventDefault();
    cursor = { row: clamp(cursor.row + down, 0, rows.length - 1), token: clamp(cursor.token + right, from, to - 1) };
    choose(rows[cursor.row], cursor.token);
    announce(says(cursor));
  });

  /** Marks the row of a node and the column of a token. */
  function mark(node, token) {
    const row = rows.indexOf(node);
    const inside = token !== null && token >= from && token < to;
    cursor = { row: Math.max(row, 0), token: inside ? token : from };
    for (const [index, name] of names.entries()) {
      name.setAttribute("aria-pressed", String(index === row));
      name.tabIndex = index === Math.max(row, 0) ? 0 : -1;
    }
    if (inside) bringIntoView((token - from) * column);
    for (const [index, head] of heads.entries()) head.classList.toggle("lit", from + index === token);
    marks.replaceChildren(...[
      row >= 0 ? svg("rect", { x: 0.7, y: row * ROW_TALL - 0.3, width: wide - 1.4, height: ROW_TALL, class: "cross" }) : null,
      inside ? svg("rect", { x: (token - from) * column - 0.3, y: 0.7, width: column, height: tall - 1.4, class: "cross" }) : null].filter(Boolean));
  }

  /** Scrolls sideways until a column is beside the names, which stay where they are. */
  function bringIntoView(left) {
    const room = element.clientWidth - element.querySelector(".names").offsetWidth;
    if (left < element.scrollLeft || left + column > element.scrollLeft + room) element.scrollLeft = left - room / 2;
  }

  element.querySelector(".names").addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = names[clamp(names.indexOf(event.target) + step, 0, names.length - 1)];
    next.click();
    next.focus();
  });
  return { element, mark };
}
