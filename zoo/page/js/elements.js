// HTML elements, made without HTML: names and texts of a zoo are text, whatever they look like.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

// A checkbox or radio button that looks like a button; checked ones also carry a tick, not only a color.
function chip(type, name, text, checked, onchange) {
  const input = element("input", { type, name, checked, onchange });
  input.checked = checked;
  return element("label", { class: "chip" }, input, element("span", {}, text));
}

function choice(text, options, value, onchange, attributes = {}) {
  const select = element("select", { ...attributes, onchange: () => onchange(select.value) });
  for (const [key, label] of options) select.append(element("option", { value: key }, label));
  select.value = value;
  return element("label", {}, `${text} `, select);
}

const grouped = (number) => number.toLocaleString("en-US");
const plural = (count, word) => `${grouped(count)} ${word}${count === 1 ? "" : "s"}`;
const spaced = (name) => name.replaceAll("_", " ");
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const fixed = (number, digits = 4) => (number === null || number === undefined ? "–" : number.toFixed(digits));

function shown(value) {
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e15) ? value.toExponential().replace("e+", "e") : String(value);
}

function short(number) {
  return number === null || number === undefined ? "–" : shown(Number(number.toPrecision(4)));
}
