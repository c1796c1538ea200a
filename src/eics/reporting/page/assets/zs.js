// Values of z to two decimals, two letters each, as `hundredths` in eics/reporting/page/packing.py packs them.

const TWO = 91 * 91;

/** Numbers from letters; NaN stands for a missing one, `far` has those that are out of range. */
function unpackZ(letters, far = []) {
  const numbers = new Float64Array(letters.length / 2);
  let beyond = 0;
  for (let i = 0; i < numbers.length; i++) {
    const code = WORTH.get(letters[2 * i]) * 91 + WORTH.get(letters[2 * i + 1]);
    numbers[i] = code === TWO - 1 ? NaN : code === TWO - 2 ? far[beyond++] : (code - 2000) / 100;
  }
  return numbers;
}

const asZ = (number) => (missing(number) ? "–" : tidy(number.toFixed(Math.abs(number) < 100 ? 2 : 0)));
