// The list of keys that "?" opens.

/** The dialog with these keys and their meanings, in the page and behind its button. */
function makeHelp(keys) {
  const help = el("dialog", { id: "help", "aria-labelledby": "help-title" },
    el("h2", { id: "help-title" }, "Keys"), el("dl", {}, keys.map(([key, meaning]) => [el("dt", {}, key), el("dd", {}, meaning)])),
    el("form", { method: "dialog" }, el("button", {}, "Close")));
  document.body.append(help);
  byId("keys").addEventListener("click", () => help.showModal());
  return help;
}
