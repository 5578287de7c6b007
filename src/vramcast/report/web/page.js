// The page of `vramcast serve`: controls → a state → an answer. The address holds the state.

const form = document.getElementById("controls"), at = (id) => document.getElementById(id);
const SIZES = ["batch", "sequence", "height", "width", "frames"];
const NUMBERS = ["gpus", "accumulation", "tensor", "pipeline"];
const MOST = { batch: 512, sequence: 32768, height: 2048, width: 2048, frames: 161 };
let described = null, drawn = null, lastJob = "", waiting = null, asked = 0, idle = 0;

async function ask(what, state, signal) {
  const answer = await fetch(`/api/${what}`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(state), signal,
  });
  const document = await answer.json();
  if (!answer.ok) throw new Error(document.error || answer.statusText);
  return document;
}

async function sendTrace(file) {
  const answer = await fetch("/api/trace", { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file });
  const document = await answer.json();
  if (!answer.ok) throw new Error(document.error || answer.statusText);
  return document;
}

// --- the state -------------------------------------------------------------------------------------------------------

/** What is chosen; settings that are as the job has them are left out. */
function currentState() {
  const state = {};
  for (const [name, value] of new FormData(form)) {
    if (typeof value !== "string" || value === "" || name.startsWith("slider-")) continue;
    if (SIZES.includes(name) || NUMBERS.includes(name)) {
      const number = Math.round(Number(value));
      if (number >= 1) state[name] = number;
    } else state[name] = value;
  }
  return state;
}

function showState(state) {
  for (const control of form.elements) if (control.name && !control.name.startsWith("slider-")) {
    const value = state[control.name];
    if (value === undefined) continue;
    if (control.tagName === "SELECT" && ![...control.options].some((option) => option.value === String(value)))
      control.append(element("option", { value }, String(value)));
    control.value = value;
  }
}

const stateInAddress = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const linkTo = (state) => `#${new URLSearchParams(state)}`;

// --- controls that depend on the job -----------------------------------------------------------------------------------

async function describeJob(chosen) {
  described = await ask("job", { job: chosen.job });
  lastJob = chosen.job;
  const rows = Object.entries(described.sizes).map(([name, size]) => {
    const value = Number(chosen[name]) || size, most = Math.max(MOST[name], size * 4, value);
    const steps = name === "batch" || name === "frames" ? 1 : size % 64 === 0 ? 64 : size % 8 === 0 ? 8 : 1;
    const number = element("input", { type: "number", name, min: 1, max: 10000000, value, "aria-label": t(name) });
    const slider = element("input", { type: "range", name: `slider-${name}`, min: 0, max: 1000, value: toSlider(value, most), "aria-label": t("{name}, as a slider", { name: t(name) }) });
    slider.addEventListener("input", () => {
      const raw = fromSlider(Number(slider.value), most);
      number.value = Math.max(1, steps > 1 ? Math.max(steps, Math.round(raw / steps) * steps) : Math.round(raw));
      slider.setAttribute("aria-valuetext", number.value);
      changed();
    });
    number.addEventListener("input", () => { slider.value = toSlider(Number(number.value) || 1, most); });
    return element("div", { class: "size" }, element("span", {}, t(name)), slider, number);
  });
  at("sizes").replaceChildren(at("sizes").querySelector("legend"), ...rows);
  form.elements.mode.disabled = form.elements.freeze.disabled = !described.has_model;
  // A trace can be replayed on another card and under another limit; nothing else of it can be changed.
  for (const name of ["precision", "optimizer", "checkpointing", "task", "compile", "strategy", ...NUMBERS]) form.elements[name].disabled = described.is_trace;
}
// Sliders are logarithmic: a batch of 1 to 512, a sequence of 64 to 32,768.
const toSlider = (value, most) => Math.round((1000 * Math.log(Math.max(1, value))) / Math.log(most));
const fromSlider = (place, most) => Math.exp((place / 1000) * Math.log(most));

// --- asking ------------------------------------------------------------------------------------------------------------

let asking = false, askAgain = false;

/** One question at a time: what changes meanwhile is asked about once the answer is there, and the answer is shown
 *  all the same, so that the picture follows a slider that does not rest. */
async function changed() {
  askAgain = true;
  if (asking) return;
  asking = true;
  while (askAgain) {
    askAgain = false;
    await answerNow();
  }
  asking = false;
}

async function answerNow() {
  clearTimeout(idle);
  at("busy").textContent = "";
  waiting?.abort();
  waiting = null;
  const number = ++asked, state = currentState(), began = performance.now();
  history.replaceState(null, "", linkTo(state));
  try {
    if (state.job !== lastJob) {
      await describeJob(state);
      if (number !== asked) return;
    }
    const found = await ask("quick", state);
    if (number !== asked) return;
    if (found) show(found, began);
    else pending(t("not traced yet"));
    if (askAgain) return;
    const patience = found ? 400 : 60;
    const next = !found || found.kind === "worked out" ? traceNow : found.pictures.moving ? drawPictures : learnBatches;
    idle = setTimeout(() => next(number, state), patience);
  } catch (error) {
    if (number === asked) problem(error);
  }
}

async function drawPictures(number, state) {
  try {
    const found = await ask("quick?pictures=1", state);
    if (number === asked && found) show(found);
    if (number === asked) learnBatches(number, state);
  } catch (error) {
    if (number === asked) problem(error);
  }
}

async function traceNow(number, state) {
  const control = (waiting = new AbortController());
  const what = [form.elements.job.selectedOptions[0]?.textContent, ...SIZES.filter((name) => state[name]).map((name) => `${t(name)} ${state[name]}`)].join(", ");
  pending(t("tracing on a virtual card: {what} …", { what }), true);
  try {
    const found = await ask("exact", state, control.signal);
    if (number !== asked) return;
    show(found);
    learnBatches(number, state);
  } catch (error) {
    if (number === asked && error.name !== "AbortError") problem(error);
  } finally {
    if (waiting === control) waiting = null;
    at("stop").hidden = true;
  }
}

/** While nothing else is asked for, trace a second batch: then every other one can be worked out at once. */
async function learnBatches(number, state) {
  const control = (waiting = new AbortController());
  at("busy").textContent = t("tracing another batch, so that the slider answers at once …");
  at("stop").hidden = false;
  await ask("more", state, control.signal).catch(() => null);
  if (waiting !== control) return;
  waiting = null;
  at("busy").textContent = "";
  at("stop").hidden = true;
}

// --- showing -----------------------------------------------------------------------------------------------------------

function pending(text, canStop = false) {
  at("how").textContent = text;
  at("verdict").classList.add("waiting");
  at("stop").hidden = !canStop;
}

function problem(error) {
  at("verdict").textContent = error.message;
  at("verdict").className = "verdict bad";
  at("how").textContent = "";
  at("advise").hidden = true;
  for (const id of ["advice", "bar", "figures", "parts", "cards", "time", "command"]) at(id).replaceChildren();
  at("copy-command").hidden = at("copy-config").hidden = true;
  at("pictures").hidden = at("notes").hidden = true;
  at("stop").hidden = true;
}

async function advise() {
  const number = asked, control = (waiting = new AbortController());
  pending(t("trying changes on a virtual card …"), true);
  try {
    const found = await ask("changes", currentState(), control.signal);
    if (number !== asked) return;
    at("how").textContent = "";
    const bars = element("div");
    bars.innerHTML = found.bars; // as the bar above: escaped by the server
    const buttons = found.changes.filter((change) => change.state).map((change) => {
      const button = element("button", { type: "button" }, t("Use: {what}", { what: change.text }));
      button.addEventListener("click", () => { showState(change.state); lastJob = ""; changed(); });
      return button;
    });
    at("advice").replaceChildren(found.changes.length ? bars : t("nothing that people try first makes it fit"), element("div", { class: "row" }, ...buttons));
  } catch (error) {
    if (number === asked && error.name !== "AbortError") at("advice").replaceChildren(error.message);
  } finally {
    if (waiting === control) waiting = null;
    at("stop").hidden = true;
    at("verdict").classList.remove("waiting");
  }
}

function show(found, began = 0) {
  at("verdict").textContent = found.verdict;
  at("verdict").className = `verdict ${found.fits ? "good" : "bad"}`;
  at("verdict").dataset.kind = found.kind;
  at("how").textContent = [t("peak at {where}", { where: found.where }), found.how].filter(Boolean).join("; ");
  at("bar").innerHTML = found.bar; // made by the server of figures and the card's name, which it escapes
  at("advise").hidden = found.fits;
  at("advice").replaceChildren();
  const figures = [[t("needed on the card"), "device_bytes"], [t("the card has"), "limit_bytes"], [found.headroom_bytes < 0 ? t("missing") : t("left"), "headroom_bytes"],
    [t("PyTorch reserves"), "peak_reserved_bytes"], [t("allocated at the peak"), "peak_allocated_bytes"]];
  at("figures").replaceChildren(...figures.map(([name, key]) => element("div", {}, element("dt", {}, name), element("dd", { "data-key": key }, element("data", { value: found[key] }, size(Math.abs(found[key])))))));
  const parts = Object.entries(found.parts).sort((a, b) => b[1] - a[1]), largest = parts[0]?.[1] || 1;
  at("parts").replaceChildren(table([t("at the peak"), t("size"), t("share"), t("compared")], parts.map(([name, bytes]) => [
    element("span", { "data-part": name }, swatch(name), t(name)), figure(bytes), share(bytes, found.device_bytes),
    element("span", { class: "meter", style: `width:calc(${bytes / largest} * min(220px, 17vw));background:${COLOURS[name]}` }),
  ]), [1, 2]));
  at("time").textContent = found.time || "";
  at("cards").textContent = found.cards.length ? t("cards that hold it: {names}", { names: found.cards.map((card) => card.name).join(", ") }) : "";
  at("command").textContent = found.command;
  at("copy-command").hidden = false;
  at("copy-config").hidden = described?.is_trace;
  if (found.config) at("command").dataset.config = found.config;
  at("notes").hidden = !found.notes.length;
  at("notes").querySelector("ul").replaceChildren(...found.notes.map((note) => element("li", {}, `${note.topic}: ${note.text}${note.where ? ` (${note.where})` : ""}`)));
  showPictures(found.pictures);
  // A task after the next frame: then it has been painted.
  if (began) requestAnimationFrame(() => setTimeout(() => { at("verdict").dataset.milliseconds = Math.round(performance.now() - began); }));
}

/** While a slider moves, the chart follows in its place; what takes longer is drawn when it rests. */
function showPictures(pictures) {
  const place = at("pictures");
  if (pictures.moving && drawn && !place.hidden) drawn.update(new Course(pictures.course));
  else {
    const places = at("picture-places").content.cloneNode(true);
    if (!pictures.lanes) places.querySelector(".lanes").remove();
    if (pictures.moving) places.querySelector(".segments").remove();
    place.replaceChildren(places);
    place.hidden = false;
    drawn = drawResult(place, pictures);
  }
  for (const old of place.querySelectorAll(".segments, .lanes")) old.classList.toggle("stale", Boolean(pictures.moving));
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    at("copied").textContent = t("copied: {what}", { what });
  } catch {
    at("copied").textContent = text;
  }
  setTimeout(() => (at("copied").textContent = ""), 4000);
}

form.addEventListener("input", (event) => event.target.type !== "file" && !event.target.name.startsWith("slider-") && changed());
form.addEventListener("submit", (event) => event.preventDefault());
form.elements.job.addEventListener("change", () => { for (const name of SIZES) form.elements[name]?.remove(); });
at("stop").addEventListener("click", () => {
  const behind = at("busy").textContent !== ""; // what is shown is whole, and more was being learnt
  waiting?.abort();
  waiting = null;
  at("busy").textContent = "";
  at("stop").hidden = true;
  if (!behind) { asked++; pending(t("stopped")); }
});
at("advise").addEventListener("click", advise);
at("copy-command").addEventListener("click", () => copy(at("command").textContent, t("the command")));
at("copy-config").addEventListener("click", () => copy(at("command").dataset.config || "", t("the config")));
at("copy-link").addEventListener("click", () => copy(location.href, t("a link")));
at("upload").addEventListener("change", async () => {
  const file = at("upload").files[0];
  if (!file) return;
  try {
    const isTrace = file.name.endsWith(".trace");
    if (file.size > (isTrace ? 32 * 2 ** 20 : 256 * 1024)) throw new Error(t("at most 256 KiB can be sent, of a trace 32 MiB"));
    const { job } = isTrace ? await sendTrace(file) : await ask("upload", { name: file.name, text: await file.text() });
    form.elements.job.append(element("option", { value: job }, file.name));
    form.elements.job.value = job;
    changed();
  } catch (error) {
    problem(error);
  }
});
addEventListener("hashchange", async () => { const state = stateInAddress(); showState(state); lastJob = ""; changed(); });

(async () => {
  const state = { job: Object.keys(data.examples)[1], gpu: "rtx-4090", ...stateInAddress() };
  showState(state);
  try {
    await describeJob(state);
    if (!stateInAddress().gpu && described.gpu) form.elements.gpu.value = described.gpu;
    changed();
  } catch (error) {
    problem(error);
  }
})();
