// Light or dark: as the system has it, or as the reader chose; always light on paper.

const THEME = "eics-theme";

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  byId("theme").textContent = isDark() ? "☀ light" : "☾ dark";
}

/** Draws the page again, with the colours that fit, when the theme changes or the page goes to paper. */
function followTheme(drawAgain) {
  byId("theme").addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    storeTheme(theme);
    setTheme(theme);
    drawAgain();
  });
  systemTheme.addEventListener("change", () => {
    setTheme(null);
    drawAgain();
  });
  onPaper.addEventListener("change", drawAgain);
  setTheme(storedTheme());
}

function storeTheme(theme) {
  try {
    localStorage.setItem(THEME, theme);
  } catch {
    // A page opened from a file may have no storage.
  }
}

function storedTheme() {
  try {
    return localStorage.getItem(THEME);
  } catch {
    return null;
  }
}
