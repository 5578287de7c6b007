// A step's memory as columns: bytes of each kind at each point, and what is alive at one of them.

class Course {
  constructor(raw) {
    Object.assign(this, raw);
    nameKinds(this.kinds);
    // From the bottom up; the usual kinds in their usual order.
    this.stack = this.kinds.every((kind) => STACK.includes(kind)) ? STACK : ["context and kernels", ...this.kinds, "rounding", "fragmentation"];
    this.length = raw.points.event.length;
    this.byKind = this.kinds.map(() => new Float64Array(this.length + 1));
    const { first, end, size: bytes, kind } = raw.rows;
    for (let row = 0; row < first.length; row++) {
      this.byKind[kind[row]][first[row]] += bytes[row];
      this.byKind[kind[row]][end[row]] -= bytes[row];
    }
    for (const column of this.byKind) for (let i = 1; i <= this.length; i++) column[i] += column[i - 1];
    this.requested = Array.from({ length: this.length }, (_, i) => this.byKind.reduce((sum, column) => sum + column[i], 0));
  }

  /** Bytes of one line of the account at a point. */
  part(name, point) {
    const { allocated, reserved } = this.points;
    if (name === "context and kernels") return this.context;
    if (name === "rounding") return allocated[point] - this.requested[point];
    if (name === "fragmentation") return reserved[point] - allocated[point];
    return this.byKind[this.kinds.indexOf(name)][point];
  }

  device(point) {
    return this.points.reserved[point] + this.context;
  }

  where(point) {
    const { event, phase, op, module, line } = this.points;
    if (this.recording) return t("event {number} of {count}", { number: (event[point] + 1).toLocaleString("en"), count: this.events.toLocaleString("en") });
    const words = [t("step {step}", { step: this.step + 1 })];
    if (this.phases[phase[point]]) words.push(t(this.phases[phase[point]]));
    const running = this.ops[op[point]], inside = this.modules[module[point]];
    if (running) words.push(inside ? t("{op} in {module}", { op: running, module: inside }) : running);
    if (this.lines[line[point]]) words.push(this.lines[line[point]]);
    return typeset(words.join(", "));
  }

  /** [row, ...] alive at the point. */
  alive(point) {
    const { first, end } = this.rows, found = [];
    for (let row = 0; row < first.length; row++) if (first[row] <= point && point < end[row]) found.push(row);
    return found;
  }

  /** What is alive, equal things together, largest first. */
  groups(point, folded, filter) {
    const { size: bytes, count, kind, module, op, shape, line } = this.rows, groups = new Map();
    const wanted = filter.trim().toLowerCase();
    for (const row of this.alive(point)) {
      const name = folded ? foldedName(this.modules[module[row]]) : this.modules[module[row]];
      const key = [kind[row], name, op[row], shape[row]].join("\n");
      let group = groups.get(key);
      if (!group) {
        group = { kind: this.kinds[kind[row]], module: name, op: this.ops[op[row]], shape: this.shapes[shape[row]], line: this.lines[line[row]], bytes: 0, count: 0 };
        if (wanted && !`${group.kind} ${t(group.kind)} ${name} ${group.op} ${group.shape} ${group.line}`.toLowerCase().includes(wanted)) continue;
        groups.set(key, group);
      }
      group.bytes += bytes[row];
      group.count += count[row];
    }
    return [...groups.values()].sort((a, b) => b.bytes - a.bytes);
  }

  /** The modules that hold something at the point, as a tree. */
  tree(point, folded) {
    const root = node("", "");
    const { size: bytes, kind, module } = this.rows;
    for (const row of this.alive(point)) {
      const full = this.modules[module[row]], name = folded ? foldedName(full) : full;
      let at = root;
      add(at, kind[row], bytes[row]);
      for (const part of name ? name.split(".") : []) {
        let child = at.children.get(part);
        if (!child) at.children.set(part, (child = node(part, at.path ? `${at.path}.${part}` : part)));
        add((at = child), kind[row], bytes[row]);
      }
    }
    return root;
    function node(name, path) {
      return { name, path, bytes: 0, kinds: new Map(), children: new Map() };
    }
    function add(to, kind, more) {
      to.bytes += more;
      to.kinds.set(kind, (to.kinds.get(kind) || 0) + more);
    }
  }
}
