// Two prompts, edge by edge: one point per edge, on the diagonal if both prompts agree.

const SIDE = 300;
const EDGE = 38;

function drawCompare(record, other, actions) {
  const circuit = circuitOf(record);
  const [ours, theirs] = [unpack(record).share, unpack(other).share];
  const both = circuit.edges.map((_, index) => index).filter((index) => !Number.isNaN(ours[index]) && !Number.isNaN(theirs[index]));
  const most = Math.max(0, ...both.map((i) => Math.max(ours[i], theirs[i]))) || 1;
  // Square roots: most shares are small and would pile up at the origin.
  const at = (share) => Math.sqrt(share / most) * (SIDE - EDGE - 12);
  const x = (i) => EDGE + at(ours[i]);
  const y = (i) => SIDE - EDGE - at(theirs[i]);
  const end = SIDE - EDGE - 12;
  const ticks = [0, 0.05, 0.25, 1].map((part) => part * most);
  const picture = svg("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, class: "compare", id: "compare", role: "img", "aria-label": `Shares of ${record.id} and ${other.id}, edge by edge` },
    svg("path", { d: `M${EDGE} ${SIDE - EDGE}h${end}M${EDGE} ${SIDE - EDGE}v${-end}`, class: "axis" }),
    svg("path", { d: `M${EDGE} ${SIDE - EDGE}l${end} ${-end}`, class: "diagonal" }),
    ticks.map((share) => [
      svg("text", { x: EDGE + at(share), y: SIDE - EDGE + 13, class: "tick", "text-anchor": "middle" }, percent(share)),
      svg("text", { x: EDGE - 5, y: SIDE - EDGE - at(share), dy: "0.35em", class: "tick", "text-anchor": "end" }, share ? percent(share) : ""),
    ]),
    svg("text", { x: EDGE + end / 2, y: SIDE - 8, class: "name", "text-anchor": "middle" }, `share, ${nameOf(record, other, 24)}`),
    svg("text", { x: EDGE + 8, y: 9, class: "name" }, `share, ${nameOf(other, record, 24)}`));
  for (const index of both) picture.append(svg("circle", { cx: x(index), cy: y(index), r: 4.2, class: "point", "data-edge": index, ...handlers({ kind: "edge", index }, actions) }));
  return picture;
}

function markCompare(term) {
  for (const point of document.querySelectorAll("#compare .point")) point.classList.toggle("lit", term?.kind === "edge" && Number(point.dataset.edge) === term.index);
}
