// Deviations of which only those above the usual matter.

/** Colour of a z, from 0 or less (as usual) to 1 (far above): linear, so that what is nearly usual stays pale. */
const aboveUsual = (part) => away(clamp(part, 0, 1) ** 2);
