// How the parts of two models are painted: colour is what was made here, the ring is its effect.

const DECADES = 4; // below the largest; what is smaller has the palest colour
const THINNEST = 1.2;
const THICKEST = 6;

const MADE = DATA.nodes.map((node) => node.made).filter((made) => made > 0);
const MOST_MADE = Math.max(0, ...MADE);
const LEAST_MADE = MADE.length ? Math.max(Math.min(...MADE), MOST_MADE / 10 ** DECADES) : 0;
const MOST_EFFECT = Math.max(0, ...DATA.nodes.map((node) => Math.abs(node.effect?.[0] ?? 0)));

/** Where an amount stands between the least and the most, on a logarithmic scale. */
const decadeOf = (made) => (MOST_MADE > LEAST_MADE ? clamp(Math.log(made / LEAST_MADE) / Math.log(MOST_MADE / LEAST_MADE), 0, 1) : 1);

const RING_GAP = 3;

function paintPart(node) {
  if (!node) return { absent: true };
  const effect = node.effect?.[0] ?? 0;
  const part = MOST_EFFECT > 0 ? Math.abs(effect) / MOST_EFFECT : 0;
  const width = THINNEST + (THICKEST - THINNEST) * strength(Math.abs(effect), MOST_EFFECT);
  // A hundredth of the largest effect would be a hair line around every node.
  const ring = part >= 0.01 ? { gap: RING_GAP + width / 2 - 1, width, dash: effect < 0 ? `${4 + width / 2} ${2 + width / 2}` : null, name: "effect" } : null;
  const fillColour = node.made > 0 ? heat(decadeOf(node.made)) : null;
  return { ring, ...(fillColour ? { fill: fillColour, ink: inkOn(fillColour) } : {}), note: !DATA.graph.grid && part >= 0.1 ? tidy(`${effect > 0 ? "+" : ""}${Number(effect.toPrecision(2))}`) : null };
}

/** The legend: numbers for the colour, the ring's width and its sign. */
function partsKey() {
  const middle = Math.sqrt(LEAST_MADE * MOST_MADE);
  const swatch = (name, words) => el("span", { class: "swatch" }, svg("svg", { viewBox: "0 0 26 16", width: 26, height: 16, "aria-hidden": "true" }, svg("rect", { x: 4, y: 3, width: 18, height: 10, rx: 3, class: name })), words);
  const wedge = svg("svg", { viewBox: `0 0 120 ${THICKEST}`, class: "wedge", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("path", { d: `M0 ${(THICKEST - THINNEST) / 2}v${THINNEST}L120 ${THICKEST}V0z` }));
  return el("div", { class: "key" },
    MOST_MADE > 0 ? colourKey("colour: made here (log scale)", gradient(heat), [`≤ ${text(LEAST_MADE, 2)}`, text(middle, 2), text(MOST_MADE, 2)]) : el("b", {}, "Nothing was made in any part: the models are equal."),
    MOST_EFFECT > 0 ? el("div", { class: "scale narrow" }, el("span", {}, `ring: |effect| on ${DATA.metric[0]}`), wedge, el("small", {}, [0, MOST_EFFECT / 4, MOST_EFFECT].map((at) => el("span", {}, text(at, 2))))) : null,
    el("div", { class: "swatches" }, swatch("plain", "nothing made here"), swatch("effect", "adds to the change"), swatch("effect against", "works against it")));
}
