// Controls above a table. Each holds one part of the state.

/** @param {{id: string, name: string, state: Object, changed: () => void}} options */
function searchBox({ id, name, state, changed, hint }) {
  return el("label", {}, "find", el("input", { type: "search", id, placeholder: hint, value: state[name], oninput: (event) => {
    state[name] = event.target.value;
    changed();
  } }));
}

/** A choice of `[value, words]`; the empty value is all. */
function choiceBox({ id, label, name, state, changed, choices }) {
  return el("label", {}, label, el("select", { id, onchange: (event) => {
    state[name] = event.target.value;
    changed();
  } }, el("option", { value: "" }, "all"), choices.map(([value, words]) => el("option", { value, selected: state[name] === value }, words))));
}

/** How a table is sorted, as one text of the state: "name" upwards, "-name" downwards. */
const sortingOf = (key) => ({ name: key.replace(/^-/, "") || undefined, down: key.startsWith("-") });
const sortKey = ({ name, down }) => (name === undefined ? "" : `${down ? "-" : ""}${name}`);

const matches = (needle, words) => words.toLowerCase().includes(needle.trim().toLowerCase());
