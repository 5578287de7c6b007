// Memory over the step: the chart, the moment that is looked at, its account and what is alive.

const SHOWN_ROWS = 40;

/** Columns of the chart: the upper edge of each kind's area, the highest first, since lower ones are drawn over it. */
function stackedAreas(course, names) {
  const levels = new Float64Array(course.length), GIB = 2 ** 30;
  return names.map((name) => Array.from(levels, (_, i) => (levels[i] += course.part(name, i)) / GIB)).reverse();
}

function memoryChart(place, course, ceiling, onHover, onSelect) {
  const GIB = 2 ** 30;
  let shown, x, phases;
  function take(next) {
    shown = next;
    x = next.points.event.map((e) => e - next.points.event[0]);
    phases = next.bands();
    return [x, ...stackedAreas(next, next.stack)];
  }
  const columns = take(course);
  const top = () => Math.max(ceiling, shown.limit * 1.04, ...shown.points.reserved.map((bytes) => (bytes + shown.context) * 1.04)) / GIB;
  const axis = { stroke: () => themeColour("--soft"), grid: { stroke: () => themeColour("--line"), width: 1 }, ticks: { stroke: () => themeColour("--line") } };
  const options = {
    width: Math.max(280, place.clientWidth), height: 330, padding: [18, 22, 0, 0], legend: { show: false },
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: { range: () => [0, top()] } },
    axes: [
      { ...axis, label: course.recording ? t("allocations and frees of the recording") : t("allocations and frees in the step"), labelSize: 20, space: course.points.event.at(-1) >= 1e6 ? 95 : 60, values: (_, ticks) => ticks.map((v) => v.toLocaleString("en")) },
      { ...axis, label: "GiB", labelSize: 18, size: 52 },
    ],
    series: [{}, ...[...course.stack].reverse().map((name) => ({
      label: name, fill: COLOURS[name], stroke: COLOURS[name], width: 0.5, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }),
    }))],
    hooks: {
      draw: [(u) => { drawPhases(u, phases); drawLimit(u, shown.limit / GIB); drawMark(u, x[shown.peak], shown.device(shown.peak) / GIB); }],
      setCursor: [(u) => u.cursor.idx !== null && u.cursor.idx !== undefined && u.cursor.left >= 0 && onHover(u.cursor.idx)],
    },
  };
  const plot = new uPlot(options, columns, place);
  new ResizeObserver(() => plot.setSize({ width: Math.max(280, place.clientWidth), height: 330 })).observe(place);
  plot.over.addEventListener("click", () => plot.cursor.idx != null && onSelect(plot.cursor.idx));
  plot.over.addEventListener("mouseleave", () => onHover(null));
  onThemeChange(place, () => plot.redraw());
  return { update: (next) => plot.setData(take(next)) };
}

function drawPhases(u, phases) {
  const { ctx, bbox } = u, ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.font = `${12 * ratio}px system-ui, sans-serif`;
  ctx.fillStyle = themeColour("--soft");
  ctx.strokeStyle = themeColour("--soft");
  ctx.textAlign = "left";
  ctx.setLineDash([2 * ratio, 3 * ratio]);
  for (const { name, from, to } of phases) {
    const left = Math.max(bbox.left, u.valToPos(from, "x", true)), right = Math.min(bbox.left + bbox.width, u.valToPos(to, "x", true));
    if (right <= bbox.left || left >= bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(left, bbox.top - 14 * ratio);
    ctx.lineTo(left, bbox.top + bbox.height);
    ctx.stroke();
    if (right - left > ctx.measureText(name).width + 8 * ratio) ctx.fillText(name, left + 4 * ratio, bbox.top - 4 * ratio);
  }
  ctx.restore();
}

function drawLimit(u, gib) {
  const { ctx, bbox } = u, ratio = devicePixelRatio || 1, y = u.valToPos(gib, "y", true);
  if (!gib || y < bbox.top) return;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = themeColour("--bad");
  ctx.lineWidth = 2 * ratio;
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.font = `600 ${12 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "right";
  const text = t("limit {size}", { size: `${gib.toFixed(2)} GiB` });
  const width = ctx.measureText(text).width + 8 * ratio, right = bbox.left + bbox.width - 2 * ratio;
  const base = y + 17 * ratio;
  ctx.fillStyle = themeColour("--bg");
  ctx.fillRect(right - width, base - 13 * ratio, width, 17 * ratio);
  ctx.fillStyle = themeColour("--bad");
  ctx.fillText(text, right - 4 * ratio, base);
  ctx.restore();
}

function drawMark(u, x, gib) {
  const { ctx } = u, ratio = devicePixelRatio || 1;
  const left = u.valToPos(x, "x", true), top = u.valToPos(gib, "y", true);
  if (left < u.bbox.left || left > u.bbox.left + u.bbox.width) return;
  ctx.save();
  ctx.fillStyle = themeColour("--fg");
  ctx.beginPath();
  ctx.moveTo(left, top);
  ctx.lineTo(left - 6 * ratio, top - 10 * ratio);
  ctx.lineTo(left + 6 * ratio, top - 10 * ratio);
  ctx.fill();
  ctx.restore();
}

Course.prototype.bands = function () {
  const { event, phase } = this.points, bands = [];
  for (let i = 0; i < this.length; i++) {
    const last = bands[bands.length - 1];
    if (!last || last.phase !== phase[i]) bands.push({ phase: phase[i], name: t(this.phases[phase[i]]), from: event[i] - event[0], to: 0 });
    bands[bands.length - 1].to = event[Math.min(i + 1, this.length - 1)] - event[0];
  }
  return bands;
};

/** The whole section. What it gives back shows another course in its place. */
function memorySection(section, course, ceiling = 0) {
  const place = section.querySelector(".chart"), slider = section.querySelector("input[type=range]");
  const where = section.querySelector(".where"), kinds = section.querySelector(".kinds"), alive = section.querySelector(".alive");
  const filter = section.querySelector("input[type=search]"), fold = section.querySelector(".fold input");
  const icicle = new Icicle(section.querySelector(".icicle"), course);
  let selected = course.peak, shown = -1;
  const chart = memoryChart(place, course, ceiling, hover, select);
  slider.addEventListener("input", () => select(Number(slider.value)));
  section.querySelector(".to-peak").addEventListener("click", () => select(course.peak));
  filter.addEventListener("input", redraw);
  fold.addEventListener("change", redraw);
  const later = oncePerFrame(draw);
  let wanted = selected;
  function hover(point) { wanted = point === null ? selected : point; if (wanted !== shown) later(); }
  function select(point) { selected = wanted = point; later(); }
  function redraw() { shown = -1; later(); }
  function begin() {
    const names = course.stack.filter((name) => course.points.event.some((_, i) => course.part(name, i) > 0));
    section.querySelector(".legend").replaceChildren(...names.reverse().map((name) => element("li", {}, swatch(name), t(name))));
    slider.max = course.length - 1;
  }
  function update(next) {
    course = icicle.course = next;
    begin();
    chart.update(next);
    selected = wanted = next.peak;
    shown = -1;
    draw();
  }
  function draw() {
    if (shown === wanted) return;
    shown = wanted;
    slider.value = shown;
    const device = course.device(shown), text = course.where(shown);
    slider.setAttribute("aria-valuetext", `${text}: ${size(device)}`);
    where.replaceChildren(element("strong", {}, shown === course.peak ? t("At the peak") : t("At this moment")), t(": ") + text);
    const rows = course.stack.map((name) => [name, course.part(name, shown)]).filter(([, bytes]) => bytes).sort((a, b) => b[1] - a[1]);
    const lines = rows.map(([name, bytes]) => [element("span", { "data-part": name }, swatch(name), t(name)), figure(bytes), share(bytes, device)]);
    const total = [element("strong", { "data-part": "total" }, t("on the card")), figure(device), share(device, device)];
    kinds.replaceChildren(table([t("kind"), t("size"), t("share")], [total, ...lines], [1, 2]));
    const groups = course.groups(shown, fold.checked, filter.value);
    const listed = groups.slice(0, SHOWN_ROWS).map((g) => [
      element("span", {}, swatch(g.kind), t(g.kind)), figure(g.bytes), g.count.toLocaleString("en"),
      breakable(g.module || "–"),
      element("span", {}, breakable(g.op || "–"), ...(g.line ? [element("small", { class: "line" }, breakable(g.line))] : [])),
      breakable(g.shape || "–"),
    ]);
    const rest = groups.slice(SHOWN_ROWS).reduce((sum, g) => sum + g.bytes, 0);
    if (rest) listed.push([t("{count} more", { count: groups.length - SHOWN_ROWS }), figure(rest), "", "", "", ""]);
    alive.replaceChildren(table([t("alive, largest first"), t("size"), t("blocks"), ...(course.recording ? [t("called from"), t("op"), t("line")] : [t("module"), t("op"), t("tensor")])], listed, [1, 2]));
    icicle.draw(shown, fold.checked);
  }
  begin();
  later();
  return { update };
}
