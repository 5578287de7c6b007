// Modules as boxes below their parents; widths are bytes. Click or Enter looks into one, Escape goes back up.

const ICICLE_ROW = 23, ICICLE_DEPTH = 9, ICICLE_LEAST = 0.0015;

class Icicle {
  constructor(place, course) {
    this.place = place;
    this.course = course;
    this.path = "";
    place.setAttribute("role", "tree");
    place.setAttribute("aria-label", t("modules, widths are bytes"));
    place.addEventListener("click", (event) => this.into(event.target));
    place.addEventListener("keydown", (event) => this.key(event));
    place.addEventListener("mousemove", (event) => event.target.dataset.label && showTip(event, event.target.dataset.label));
    place.addEventListener("mouseleave", hideTip);
  }

  draw(point, folded) {
    this.point = point;
    this.folded = folded;
    const whole = this.course.tree(point, folded);
    let root = whole;
    for (const part of this.path ? this.path.split(".") : []) root = root.children.get(part) || root;
    this.path = root.path;
    this.boxes = [];
    this.deepest = 0;
    if (root.bytes) this.box(root, root.path || t("all modules"), 0, 0, root.bytes, root.bytes, whole.bytes);
    this.place.style.height = `${(this.deepest + 1) * ICICLE_ROW}px`;
    const made = this.boxes.map((box, i) => {
      const label = `${box.node.path || t("all modules")}: ${size(box.node.bytes)}, ${share(box.node.bytes, whole.bytes)}, ${t("mostly {kind}", { kind: t(box.kind) })}`;
      return element("div", {
        role: "treeitem", "aria-level": box.depth + 1, "aria-label": label, "data-label": label, "data-box": i, tabindex: i ? -1 : 0,
        "aria-selected": i ? "false" : "true",
        style: `left:${box.left * 100}%;width:${box.width * 100}%;top:${box.depth * ICICLE_ROW}px;background:${COLOURS[box.kind]}`,
      }, box.text);
    });
    this.place.replaceChildren(...made);
  }

  box(node, text, depth, left, bytes, scale, whole) {
    const width = bytes / scale;
    if (width < ICICLE_LEAST || depth > ICICLE_DEPTH) return;
    // A module that only holds another one shares its box.
    while (node.children.size === 1 && [...node.children.values()][0].bytes === node.bytes) {
      node = [...node.children.values()][0];
      text = depth || text !== t("all modules") ? `${text}.${node.name}` : node.name;
    }
    const kind = this.course.kinds[[...node.kinds].sort((a, b) => b[1] - a[1])[0][0]];
    this.boxes.push({ node, depth, left, width, kind, text: `${text} ${size(node.bytes)}` });
    this.deepest = Math.max(this.deepest, depth);
    let from = left;
    for (const child of [...node.children.values()].sort((a, b) => b.bytes - a.bytes)) {
      this.box(child, child.name, depth + 1, from, child.bytes, scale, whole);
      from += child.bytes / scale;
    }
  }

  into(target) {
    const box = this.boxes[target.dataset.box];
    if (!box) return;
    const parts = this.path.split(".");
    this.path = target.dataset.box === "0" ? parts.slice(0, -1).join(".") : box.node.path;
    hideTip();
    this.draw(this.point, this.folded);
    this.place.firstElementChild?.focus();
  }

  key(event) {
    const at = Number(event.target.dataset.box), box = this.boxes[at];
    if (!box) return;
    if (event.key === "Enter" || event.key === " ") this.into(event.target);
    else if (event.key === "Escape") this.into(this.place.firstElementChild);
    else {
      const level = this.boxes.filter((other) => other.depth === box.depth), place = level.indexOf(box);
      const next = {
        ArrowRight: level[place + 1], ArrowLeft: level[place - 1],
        ArrowDown: this.boxes.find((other, i) => i > at && other.depth === box.depth + 1),
        ArrowUp: this.boxes.slice(0, at).reverse().find((other) => other.depth === box.depth - 1),
      }[event.key];
      if (!next) return;
      this.place.children[this.boxes.indexOf(next)].focus();
    }
    event.preventDefault();
  }
}
