// What every picture uses: words, sizes, colours, elements, the tooltip.

const texts = data.texts || {};
/** The text in the reader's language; {name} is put in from `values`. */
const t = (text, values = {}) => typeset((texts[text] || text).replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole));
/** As base/language.py has it: no space between Chinese characters, no mark of another script beside them. */
const MARKS = { ",": "，", ";": "；", ":": "：" };
const typeset = (text) => (Object.keys(texts).length ? text.replace(/(?<=[\u3000-\u9fff\uff01-\uff60])([,;:]) | ?([,;]) (?=[\u3000-\u9fff])/g, (_, after, before) => MARKS[after || before]).replace(/(?<=[\u3000-\u9fff\uff01-\uff60]) (?=[\u3000-\u9fff])/g, "") : text);

const UNITS = [["GiB", 2 ** 30, 2], ["MiB", 2 ** 20, 1], ["KiB", 2 ** 10, 1]];
function size(bytes) {
  for (const [unit, least, digits] of UNITS) if (Math.abs(bytes) >= least) return `${(bytes / least).toFixed(digits)} ${unit}`;
  return `${bytes} B`;
}
const signedSize = (bytes) => (bytes < 0 ? "−" : "+") + size(Math.abs(bytes));
function seconds(value) {
  return value >= 1 ? `${value.toFixed(2)} s` : value >= 1e-3 ? `${(value * 1e3).toFixed(1)} ms` : `${(value * 1e6).toFixed(0)} µs`;
}
const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");

// Each is light enough for dark letters on it, in both themes.
const COLOURS = {
  "context and kernels": "#9aa6b2", weights: "#7fb0e6", buffers: "#b3bdc8", gradients: "#f2a765", "optimizer state": "#b79ae0",
  "autocast copies": "#e99bbb", inputs: "#5fcaca", "saved activations": "#6cc58e", "outputs/other": "#bcc46a",
  workspaces: "#cfa980", temporaries: "#f2cd55", rounding: "#d8d8d8", fragmentation: "#c9bcbc",
};
const STACK = Object.keys(COLOURS);
const PALETTE = ["#7fb0e6", "#6cc58e", "#f2a765", "#b79ae0", "#f2cd55", "#5fcaca", "#e99bbb", "#bcc46a", "#cfa980", "#9fb4ff", "#c4c9d0"];
/** Kinds that a picture brings itself, such as lines of code, get colours in their order. */
function nameKinds(kinds) {
  kinds.forEach((kind, i) => (COLOURS[kind] ??= PALETTE[i % PALETTE.length]));
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style" || value === null) made.style.cssText = value || "";
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}
const figure = (bytes) => element("data", { value: bytes }, size(bytes));
const swatch = (kind) => element("span", { class: "swatch", style: `background:${COLOURS[kind]}` });

/** A long name that may be broken after its dots and underscores, before it is broken anywhere. */
function breakable(name) {
  return element("span", { class: "wrap" }, ...name.split(/(?<=[._/:,])/).flatMap((part) => [part, element("wbr")]));
}

function table(headings, rows, figures) {
  const side = (i) => (figures.includes(i) ? { class: "n" } : {});
  const head = element("tr", {}, ...headings.map((text, i) => element("th", { ...side(i), scope: "col" }, text)));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell, i) => element("td", side(i), cell))));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

const tip = element("div", { class: "tip", hidden: "" });
document.body.append(tip);
function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = !text;
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 8 : event.clientY + 18}px`;
}
const hideTip = () => (tip.hidden = true);

/** Calls `draw` once a frame however often it is asked for. */
function oncePerFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); });
  };
}

let colours = {};
/** Looked up once a theme: asking for the style takes longer than drawing an axis. */
const themeColour = (name) => (colours[name] ??= getComputedStyle(document.documentElement).getPropertyValue(name).trim());
document.addEventListener("themechange", () => (colours = {}));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("themechange")));

/** Calls `draw` when the theme changes, for as long as `place` is on the page. At once: a page is printed right after it. */
function onThemeChange(place, draw) {
  document.addEventListener("themechange", function changed() {
    if (place.isConnected) draw();
    else document.removeEventListener("themechange", changed);
  });
}

/** A canvas as wide as its place, drawn again when that changes. `draw` gets the context, width and height. */
function canvasIn(place, height, label, draw) {
  const canvas = element("canvas", { role: "img", "aria-label": label });
  place.append(canvas);
  const paintNow = () => {
    const width = place.clientWidth, ratio = devicePixelRatio || 1;
    if (!width) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.cssText = `width:${width}px;height:${height}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    draw(context, width, height);
  };
  const paint = oncePerFrame(paintNow);
  new ResizeObserver(paint).observe(place);
  onThemeChange(place, paintNow);
  paint();
  return { canvas, paint };
}

/** Layers of a stack by one name: layers.0.mlp and layers.1.mlp are layers.*.mlp. */
const foldedName = (name) => name.replace(/(^|\.)\d+(?=\.|$)/g, "$1*");
