// A control that is on or off, as those in filters.js.

function tickBox({ id, label, name, state, changed }) {
  return el("label", { class: "tick" }, el("input", { type: "checkbox", id, checked: state[name], onchange: (event) => {
    state[name] = event.target.checked;
    changed();
  } }), label);
}
