/** Equations as MathML elements: `mi` for letters (bold for vectors and matrices), `mn` for numbers, `mo` for operators. */

const NAMESPACE = "http://www.w3.org/1998/Math/MathML";

/** @typedef {Node | string} Part  a string: letters, numbers and operators, set apart by spaces */

/** @param {string} tag @param {(Node | string)[]} children */
function element(tag, ...children) {
  const made = document.createElementNS(NAMESPACE, tag);
  made.append(...children);
  return made;
}

/** Return one part as elements. @param {Part} part */
function parse(part) {
  if (part instanceof Node) return [part];
  return part.split(" ").map((word) => {
    if (/^[−-]?\d/.test(word)) return element("mn", word);
    if (/^[\p{L}′]+$/u.test(word)) return element("mi", word);
    const operator = element("mo", word);
    if (word === "(" || word === ")") operator.setAttribute("stretchy", "false");
    return operator;
  });
}

/** @param {Part[]} parts */
export function row(...parts) {
  return element("mrow", ...parts.flatMap(parse));
}

/** @param {Part} base @param {Part} index */
export function sub(base, index) {
  return element("msub", row(base), row(index));
}

/** @param {Part} base @param {Part} exponent */
export function sup(base, exponent) {
  return element("msup", row(base), row(exponent));
}

/** @param {Part} above @param {Part} below */
export function fraction(above, below) {
  return element("mfrac", row(above), row(below));
}

/** @param {Part} inner */
export function root(inner) {
  return element("msqrt", row(inner));
}

/** @param {string} content */
export function words(content) {
  return element("mtext", content);
}

/** Return a sum's sign with its index below. @param {Part} index */
export function sum(index) {
  return element("munder", element("mo", "∑"), row(index));
}

/** @param {Part[]} parts */
export function equation(...parts) {
  const made = element("math", row(...parts));
  made.setAttribute("displaystyle", "true");
  return made;
}
