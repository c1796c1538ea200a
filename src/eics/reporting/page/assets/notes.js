// Remarks at the top of the page.

function renderNotes(title) {
  const box = byId("notes");
  box.hidden = DATA.notes.length === 0;
  box.replaceChildren(el("h3", {}, title), el("ul", {}, DATA.notes.map((note) => el("li", {}, note))));
}
