// Elements and text. Strings become text nodes, so nothing in a prompt is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, given] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), given);
    else if (name === "style") Object.assign(element.style, given);
    else if (given !== null && given !== undefined && given !== false) element.setAttribute(name, given === true ? "" : given);
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);
const missing = (number) => number === null || number === undefined || Number.isNaN(number);

/** A number in few digits, or a dash if it is missing. */
function text(number, digits = 4) {
  if (missing(number)) return "–";
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size >= 1e6 || size < 1e-4) return tidy(number.toExponential(digits - 1));
  const rounded = Number(number.toPrecision(digits));
  return tidy(size >= 1e4 ? rounded.toLocaleString("en-US") : String(rounded));
}

const tidy = (shown) => shown.replaceAll("-", "−").replace("e+", "e");

const cut = (words, length) => (words.length > length ? `${words.slice(0, length - 1)}…` : words);
const clamp = (number, low, high) => Math.min(high, Math.max(low, number));

/** Tells a screen reader what changed. */
function announce(words) {
  byId("live").textContent = words;
}
