// What PyTorch got from the driver, segment after segment, each with what lies in it at the peak.

function segmentsSection(section, course) {
  const segments = course.segments.map(([small, stream, ...parts]) => ({ small, stream, parts: pairs(parts) }));
  for (const segment of segments) segment.bytes = segment.parts.reduce((sum, [bytes]) => sum + bytes, 0);
  segments.sort((a, b) => a.small - b.small || b.bytes - a.bytes);
  const total = segments.reduce((sum, segment) => sum + segment.bytes, 0);
  const holes = segments.flatMap((segment) => segment.parts.filter(([, kind]) => kind < 0).map(([bytes]) => bytes));
  const free = holes.reduce((sum, bytes) => sum + bytes, 0);
  section.querySelector(".summary").replaceChildren(
    ...t("{count} segments, {total}; {free} of it holds nothing, the largest hole is {hole}").split(/(\{\w+\})/).map((word) => ({
      "{count}": segments.length.toLocaleString("en"), "{total}": figure(total), "{free}": figure(free), "{hole}": figure(Math.max(0, ...holes)),
    })[word] ?? word));
  const place = section.querySelector(".chart"), ROW = 16, GAP = 3;
  const lines = Math.max(4, Math.min(24, Math.ceil(segments.length / 4)));
  let drawn = [];
  const { canvas } = canvasIn(place, lines * (ROW + GAP), t("segments of the allocator at the peak"), (ctx, width) => {
    drawn = [];
    const perLine = total / lines;
    let at = 0;
    ctx.clearRect(0, 0, width, lines * (ROW + GAP));
    for (const segment of segments) {
      for (const [bytes, kind] of segment.parts) paint(ctx, width, perLine, at, (at += bytes), kind, segment);
      const line = Math.floor(at / perLine), x = ((at - line * perLine) / perLine) * width;
      ctx.fillStyle = themeColour("--fg");
      ctx.fillRect(x - 0.5, line * (ROW + GAP), 1, ROW);
    }
  });
  function paint(ctx, width, perLine, from, to, kind, segment) {
    while (from < to - 0.5) {
      const line = Math.min(lines - 1, Math.floor(from / perLine + 1e-9)), end = Math.min(to, (line + 1) * perLine);
      const x = ((from - line * perLine) / perLine) * width, w = ((end - from) / perLine) * width, y = line * (ROW + GAP);
      ctx.fillStyle = kind < 0 ? themeColour("--panel") : COLOURS[course.kinds[kind]];
      ctx.fillRect(x, y, w, ROW);
      if (kind < 0) { ctx.strokeStyle = themeColour("--bad"); ctx.lineWidth = 1; ctx.strokeRect(x + 0.5, y + 0.5, Math.max(0, w - 1), ROW - 1); }
      drawn.push({ x, y, w, kind, segment, bytes: to - from });
      if (end <= from) break;
      from = end;
    }
  }
  canvas.addEventListener("mousemove", (event) => {
    const { offsetX, offsetY } = event;
    const hit = drawn.find((one) => offsetX >= one.x && offsetX <= one.x + one.w && offsetY >= one.y && offsetY <= one.y + ROW);
    if (!hit) return hideTip();
    const what = hit.kind < 0 ? t("free") : t(course.kinds[hit.kind]);
    const pool = hit.segment.small ? t("small pool") : t("large pool");
    showTip(event, `${what}, ${size(hit.bytes)}; ${t("segment of {size}", { size: size(hit.segment.bytes) })}, ${pool}, ${t("stream {number}", { number: hit.segment.stream })}`);
  });
  canvas.addEventListener("mouseleave", hideTip);
}

function pairs(flat) {
  return Array.from({ length: flat.length / 2 }, (_, i) => [flat[2 * i], flat[2 * i + 1]]);
}
