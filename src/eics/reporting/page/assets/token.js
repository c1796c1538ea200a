// A token as it is shown where blanks do not matter.

const asToken = (word) => {
  const shown = word.replaceAll("\n", "⏎");
  return shown.trim() === "" ? "␣" : shown.trim();
};
