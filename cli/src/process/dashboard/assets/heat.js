// The page's heat map: ranks by time, coloured by how long they compute in a step, compared with the median of all. With the
// arrow keys a cell is chosen and read out; a table says the same in words. Called by page.js.
"use strict";

class HeatMap {
  static SLOW = 1.5;
  static MARGIN = 44;
  static AXIS = 16;

  constructor(box, readout, table) {
    this.box = box;
    this.readout = readout;
    this.table = table;
    this.canvas = document.createElement("canvas");
    this.box.append(this.canvas);
    this.content = null;
    this.chosen = null;
    new ResizeObserver(() => this.draw()).observe(box);
    box.addEventListener("pointermove", (event) => this.choose(this.at(event)));
    box.addEventListener("pointerleave", () => { if (document.activeElement !== box) this.choose(null); });
    box.addEventListener("blur", () => {
      this.readout.ariaLive = "off";
      this.choose(null);
    });
    box.addEventListener("focus", () => {
      // A choice by key is announced to screen readers; the change of every second is not.
      this.readout.ariaLive = "polite";
      this.choose(this.chosen || { row: 0, column: this.columns() - 1 });
    });
    box.addEventListener("keydown", (event) => this.key(event));
  }

  columns() {
    return this.content ? this.content.t.length : 0;
  }

  show(content) {
    this.content = content;
    this.draw();
    this.list();
    this.read();
  }

  // How many times as long as the median: a letter is a tenth.
  static factor(letter) {
    return letter === "." ? null : 0.5 + (letter.charCodeAt(0) - 97) / 10;
  }

  ranks(row) {
    const each = this.content.ranks_a_row;
    return each === 1 ? `rank ${row}` : `ranks ${row * each} to ${row * each + each - 1}`;
  }

  draw() {
    if (!this.columns() || !this.box.clientWidth) return;
    const { t, rows } = this.content;
    const scale = window.devicePixelRatio || 1;
    const height = Math.max(Math.min(18, 320 / Math.max(rows.length, 1)), 4);
    const [width, below] = [this.box.clientWidth, Math.ceil(height * rows.length)];
    const whole = below + HeatMap.AXIS;
    Object.assign(this.canvas, { width: width * scale, height: whole * scale });
    this.canvas.style.height = `${whole}px`;
    this.canvas.style.width = `${width}px`;
    const [hot, cold, even] = ["heat-slow", "heat-fast", "heat-even"].map(Charts.colour);
    const [ink, text] = [Charts.colour("text"), Charts.colour("muted")];
    const paint = this.canvas.getContext("2d");
    paint.scale(scale, scale);
    this.place = { height, width: (width - HeatMap.MARGIN) / Math.max(t.length, 1) };
    const mix = (colour, share) => `color-mix(in srgb, ${colour} ${Math.round(100 * Math.min(share, 1))}%, ${even})`;
    rows.forEach((row, number) => {
      const top = number * height;
      [...row.cells].forEach((letter, column) => {
        const factor = HeatMap.factor(letter);
        if (factor == null) return;
        const [left, wide] = [HeatMap.MARGIN + column * this.place.width, this.place.width];
        paint.fillStyle = factor >= 1 ? mix(hot, (factor - 1) / 1.5) : mix(cold, (1 - factor) / 0.5);
        paint.fillRect(left, top, wide + 0.5, height - 1);
        if (factor < HeatMap.SLOW) return;
        // A mark, for those who do not tell the colours apart.
        paint.fillStyle = ink;
        const dot = Math.min(4, wide, height - 2);
        paint.fillRect(left + (wide - dot) / 2, top + (height - 1 - dot) / 2, dot, dot);
      });
      if (height < 11 && number % 4) return;
      paint.fillStyle = text;
      paint.font = "11px system-ui, sans-serif";
      paint.textBaseline = "middle";
      paint.fillText(String(number * this.content.ranks_a_row), 0, top + height / 2, HeatMap.MARGIN - 6);
    });
    paint.fillStyle = text;
    paint.font = "11px system-ui, sans-serif";
    paint.textBaseline = "bottom";
    paint.fillText(Charts.clock(t[0] / 1000), HeatMap.MARGIN, whole);
    paint.textAlign = "right";
    paint.fillText(Charts.clock(t.at(-1) / 1000), width, whole);
    if (!this.chosen) return;
    paint.strokeStyle = ink;
    paint.lineWidth = 2;
    const { row, column } = this.chosen;
    paint.strokeRect(HeatMap.MARGIN + column * this.place.width, row * height, Math.max(this.place.width, 3), height);
  }

  at(event) {
    if (!this.place) return null;
    const frame = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - frame.left - HeatMap.MARGIN) / this.place.width);
    const row = Math.floor((event.clientY - frame.top) / this.place.height);
    return column >= 0 ? { row, column } : null;
  }

  choose(cell) {
    const last = { row: this.content ? this.content.rows.length - 1 : 0, column: this.columns() - 1 };
    const bounded = (value, most) => Math.max(0, Math.min(value, most));
    this.chosen = cell && { row: bounded(cell.row, last.row), column: bounded(cell.column, last.column) };
    this.draw();
    this.read();
  }

  key(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -1e6], End: [0, 1e6] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const { row, column } = this.chosen || { row: 0, column: this.columns() - 1 };
    this.choose({ row: row + move[0], column: column + move[1] });
  }

  // The cell that is chosen, or who is slowest now.
  read() {
    if (!this.content || !this.content.rows.length) return;
    const { t, rows } = this.content;
    if (this.chosen) {
      const { row, column } = this.chosen;
      const factor = rows[row] && HeatMap.factor(rows[row].cells[column] || ".");
      const said = factor == null ? "not measured" : `${factor.toFixed(1)} times the median`;
      this.readout.textContent = `${Charts.clock(t[column] / 1000)}, ${this.ranks(row)}: ${said}`;
      return;
    }
    const slowest = rows.map((row) => row.now).filter(Boolean).sort((one, other) => other.factor - one.factor)[0];
    this.readout.textContent = slowest
      ? `now slowest: rank ${slowest.rank} (${slowest.host}), ${slowest.factor.toFixed(1)} times the median` : "";
  }

  list() {
    const ms = (value) => (value == null ? "–" : value.toFixed(value < 10 ? 2 : 1));
    this.table.replaceChildren(...this.content.rows.map(({ now }, row) => {
      const values = now
        ? [now.rank, now.host, `${now.factor.toFixed(2)} ×`, ms(now.compute_ms), ms(now.waiting_ms), ms(now.step_ms)]
        : [this.ranks(row), "–", "–", "–", "–", "–"];
      const line = document.createElement("tr");
      for (const value of values) line.insertCell().textContent = value;
      if (now && now.factor >= HeatMap.SLOW) line.className = "slow";
      return line;
    }));
  }
}
