// The time of a step: phases, host, card. The wheel or the buttons look closer.

function lanesSection(section, lanes) {
  const rows = [[t("phases"), lanes.phases], [t("host"), lanes.host], [t("card"), lanes.card]];
  const end = lanes.seconds, ROW = 26, GAP = 6, LEFT = 64, BOTTOM = 22;
  const place = section.querySelector(".chart");
  let from = 0, to = end;
  const height = rows.length * (ROW + GAP) + BOTTOM;
  const palette = ["#7fb0e6", "#6cc58e", "#f2a765", "#b79ae0", "#f2cd55", "#5fcaca", "#e99bbb", "#bcc46a"];
  const colourOf = new Map();
  const colour = (label) => {
    const name = foldedName(label);
    if (!colourOf.has(name)) colourOf.set(name, palette[colourOf.size % palette.length]);
    return colourOf.get(name);
  };
  const { canvas, paint } = canvasIn(place, height, t("time of a step on host and card"), draw);
  function draw(ctx, width) {
    ctx.clearRect(0, 0, width, height);
    ctx.font = "12px system-ui, sans-serif";
    const scale = (width - LEFT) / (to - from);
    rows.forEach(([name, bars], i) => {
      const y = i * (ROW + GAP);
      ctx.fillStyle = themeColour("--soft");
      ctx.fillText(name, 0, y + 17);
      if (bars !== lanes.host) drawBefore(ctx, y, scale);
      for (let b = 0; b < bars.begin.length; b++) {
        const x = Math.max(LEFT, LEFT + (bars.begin[b] - from) * scale), right = Math.min(width, LEFT + (bars.end[b] - from) * scale);
        if (right <= LEFT || x >= width) continue;
        const label = lanes.labels[bars.label[b]];
        ctx.fillStyle = colour(label);
        ctx.fillRect(x, y, Math.max(0.6, right - x), ROW);
        const shown = label ? t(label.split(".").slice(-2).join(".")) : "";
        if (shown && right - x > ctx.measureText(shown).width + 6) {
          ctx.fillStyle = "#111";
          ctx.fillText(shown, x + 3, y + 17);
        }
      }
    });
    ctx.fillStyle = themeColour("--soft");
    const ticks = width < 480 ? 2 : 4;
    for (let i = 0; i <= ticks; i++) {
      const text = seconds(from + ((to - from) * i) / ticks), x = LEFT + ((width - LEFT) * i) / ticks;
      ctx.textAlign = i === ticks ? "right" : i ? "center" : "left";
      ctx.fillText(text, x, height - 6);
    }
    ctx.textAlign = "left";
  }
  /** The host is ahead: while it issues this step, the card is still at the one before. */
  function drawBefore(ctx, y, scale) {
    const right = LEFT + (lanes.before - from) * scale, text = t("the step before");
    if (right <= LEFT) return;
    ctx.fillStyle = themeColour("--panel");
    ctx.fillRect(LEFT, y, right - LEFT, ROW);
    ctx.strokeStyle = themeColour("--line");
    ctx.strokeRect(LEFT + 0.5, y + 0.5, right - LEFT - 1, ROW - 1);
    ctx.fillStyle = themeColour("--soft");
    if (right - LEFT > ctx.measureText(text).width + 6) ctx.fillText(text, LEFT + 3, y + 17);
  }
  function zoom(factor, middle = (from + to) / 2) {
    const span = Math.min(end, (to - from) * factor);
    from = Math.max(0, Math.min(end - span, middle - (middle - from) * (span / (to - from))));
    to = from + span;
    paint();
  }
  section.querySelector(".closer").addEventListener("click", () => zoom(0.5));
  section.querySelector(".wider").addEventListener("click", () => zoom(2));
  const move = (part) => { const by = (to - from) * part, span = to - from; from = Math.max(0, Math.min(end - span, from + by)); to = from + span; paint(); };
  section.querySelector(".earlier").addEventListener("click", () => move(-0.5));
  section.querySelector(".later").addEventListener("click", () => move(0.5));
  const timeAt = (event) => from + ((event.offsetX - LEFT) / (place.clientWidth - LEFT)) * (to - from);
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event));
  }, { passive: false });
  canvas.addEventListener("mousemove", (event) => {
    const row = rows[Math.floor(event.offsetY / (ROW + GAP))];
    if (!row) return hideTip();
    const time = timeAt(event), slack = ((to - from) / place.clientWidth) * 1.5, bars = row[1];
    const hit = bars.begin.findIndex((begin, b) => begin - slack <= time && time <= bars.end[b] + slack);
    if (hit < 0) return hideTip();
    const label = lanes.labels[bars.label[hit]];
    const ops = bars.ops[hit] > 1 ? `, ${t("{count} ops", { count: bars.ops[hit] })}` : "";
    showTip(event, `${label ? t(label) : t("in no module")}: ${seconds(bars.end[hit] - bars.begin[hit])}, ${t("busy {time}", { time: seconds(bars.busy[hit]) })}${ops}`);
  });
  canvas.addEventListener("mouseleave", hideTip);
}
