// The 91 letters in which numbers are packed, as in eics/reporting/page/packing.py.

const LETTERS = Array.from({ length: 94 }, (_, index) => String.fromCharCode(33 + index)).filter((letter) => !'"<\\'.includes(letter));
const WORTH = new Map(LETTERS.map((letter, worth) => [letter, worth]));
