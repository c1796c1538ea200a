// Colours of groups, those of Okabe and Ito with two greys, which colour-blind readers can tell apart.

const LABELS = {
  light: ["#0072b2", "#d55e00", "#009e73", "#a8487f", "#8a6d00", "#56b4e9", "#1d1f27", "#8c8c8c"],
  dark: ["#56b4e9", "#f0915a", "#3fc79a", "#e39ac4", "#e6c84b", "#8fa8ff", "#eceef4", "#9a9a9a"],
};

const labelColour = (index) => LABELS[isDark() ? "dark" : "light"][index];
