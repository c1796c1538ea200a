// Keys for the whole page.

const KEYS = [
  ["← →", "previous or next prompt"], ["p", "presentation: large type, one prompt"], ["?", "this list"], ["Tab", "next control, table or picture"],
  ["↑ ↓", "in a table: rows; in the picture: edges by share"], ["← →", "in the picture: nodes"], ["Enter", "select the focused edge or node"], ["Esc", "deselect; leave the presentation"],
  ["+ − 0", "in the picture: zoom in, out, whole circuit"], ["Shift + arrows", "in the picture: pan"], ["wheel", "in the picture: zoom, after a click or with Ctrl; drag to pan"],
];

const help = makeHelp(KEYS);

function listenToKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open || event.defaultPrevented) return;
    const typing = event.target.closest("input, select, textarea");
    if (typing) return;
    const free = !event.target.closest("button, tr, svg, [tabindex]");
    const run = {
      "?": () => help.showModal(), p: () => actions.slides(), ArrowRight: free && (() => actions.step(1)), ArrowLeft: free && (() => actions.step(-1)),
      Escape: document.documentElement.classList.contains("slides") && (() => actions.slides(false)),
    }[event.key];
    if (!run) return;
    event.preventDefault();
    run();
  });
}
