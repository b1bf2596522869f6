// The page's charts, by uPlot: world size with resets as marks, slots by what they do, and what the program reports. Called
// by page.js.
"use strict";

const Charts = (() => {
  const HEIGHT = 220;
  const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

  // The colour that a custom property stands for in the present theme: a canvas cannot read light-dark().
  const colour = (name) => {
    const probe = document.createElement("i");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };

  const axes = () => {
    const common = {
      stroke: colour("muted"),
      grid: { stroke: colour("line"), width: 1 },
      ticks: { stroke: colour("line"), width: 1 },
      font: "12px system-ui, sans-serif",
    };
    const whole = (_, values) => values.map((value) => (Number.isInteger(value) ? value : ""));
    return [
      { ...common, space: 70, values: [
        [86400, "{DD}.{MM}.", null, null, null, null, null, null, 1],
        [60, "{HH}:{mm}", null, null, null, null, null, null, 1],
        [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1],
        [0.001, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1],
      ] },
      { ...common, size: 44, values: whole },
    ];
  };

  const options = (box, series, more) => ({
    width: Math.max(box.clientWidth, 120),
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false } },
    scales: { y: { range: (_, __, most) => [0, Math.max(1, most * 1.08)] } },
    axes: axes(),
    series: [{}, ...series],
    ...more,
  });

  // A chart that is made anew when its series, or the theme, change.
  class Chart {
    constructor(box, readout) {
      this.box = box;
      this.readout = readout;
      new ResizeObserver(() => {
        if (this.plot) this.plot.setSize({ width: Math.max(this.box.clientWidth, 120), height: HEIGHT });
      }).observe(this.box);
    }

    draw(key, data, make) {
      if (this.plot && this.key === key) {
        this.plot.setData(data);
        return;
      }
      if (this.plot) this.plot.destroy();
      this.key = key;
      this.plot = new uPlot(make(), data, this.box);
    }

    forget() {
      this.key = undefined;
    }
  }

  // World size: a line in steps, and a mark for each reset.
  class World extends Chart {
    constructor() {
      super(document.getElementById("world"), document.getElementById("world-readout"));
      this.marks = [];
    }

    show(points, now) {
      const t = points.map((point) => point.t / 1000);
      const sizes = points.map((point) => point.size);
      if (points.length) {
        t.push(Math.max(now / 1000, t[t.length - 1] + 1));
        sizes.push(sizes[sizes.length - 1]);
      }
      this.marks = points.filter((point) => point.reset);
      this.draw("world", [t, sizes], () => {
        const line = colour("b-training");
        const step = uPlot.paths.stepped({ align: 1 });
        const ways = { abort: colour("bad"), interrupt: colour("muted"), restart: colour("warn") };
        const series = [{ stroke: line, width: 2, paths: step, fill: `color-mix(in srgb, ${line} 18%, transparent)`, points: { show: false } }];
        const mark = (plot) => this.drawMarks(plot, ways);
        const read = (plot) => this.read(plot);
        return options(this.box, series, { hooks: { draw: [mark], setCursor: [read] } });
      });
      this.read(this.plot);
    }

    drawMarks(plot, ways) {
      const { ctx, bbox } = plot;
      ctx.save();
      for (const mark of this.marks) {
        const x = plot.valToPos(mark.t / 1000, "x", true);
        if (x < bbox.left || x > bbox.left + bbox.width) continue;
        ctx.strokeStyle = ctx.fillStyle = ways[mark.reset.way] || ways.abort;
        ctx.globalAlpha = 0.55;
        ctx.lineWidth = devicePixelRatio;
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        ctx.globalAlpha = 1;
        const half = 5 * devicePixelRatio;
        ctx.beginPath();
        ctx.moveTo(x - half, bbox.top);
        ctx.lineTo(x + half, bbox.top);
        ctx.lineTo(x, bbox.top + 1.6 * half);
        ctx.fill();
      }
      ctx.restore();
    }

    // The reset nearest to the cursor, or the last one.
    read(plot) {
      const left = plot.cursor.left;
      let mark = this.marks[this.marks.length - 1];
      if (left >= 0 && plot.cursor.idx != null) {
        const distance = (it) => Math.abs(plot.valToPos(it.t / 1000, "x") - left);
        const near = this.marks.filter((it) => distance(it) < 12).sort((a, b) => distance(a) - distance(b))[0];
        if (!near) {
          const size = plot.data[1][plot.cursor.idx];
          this.readout.textContent = `${clock(plot.data[0][plot.cursor.idx])}: ${size} workers train`;
          return;
        }
        mark = near;
      }
      this.readout.textContent = mark
        ? `${clock(mark.t / 1000)}: generation ${mark.generation} ends (${mark.reset.way}): ${mark.reset.cause}`
        : "No reset yet.";
    }
  }

  // Slots by what they do: areas on top of each other. The highest sum is drawn first, and each next one over it.
  class Goodput extends Chart {
    constructor() {
      super(document.getElementById("goodput"), document.getElementById("goodput-readout"));
      this.names = [];
    }

    show(content, order) {
      const names = order.filter((name) => content.slots[name]);
      const t = content.t.map((ms) => ms / 1000);
      let sum = t.map(() => 0);
      const sums = names.map((name) => {
        const values = content.slots[name];
        // The last piece reaches until now.
        sum = sum.map((before, index) => before + values[Math.min(index, values.length - 1)]);
        return sum;
      });
      this.names = names;
      this.values = content.slots;
      this.draw(names.join(), [t, ...sums.reverse()], () => {
        const step = uPlot.paths.stepped({ align: 1 });
        const series = [...names].reverse().map((name) => {
          const fill = colour(`b-${name}`);
          return { stroke: fill, fill, width: 0, paths: step, points: { show: false } };
        });
        return options(this.box, series, { hooks: { setCursor: [(plot) => this.read(plot)] } });
      });
      this.read(this.plot);
    }

    read(plot) {
      const count = plot.data[0].length;
      if (count < 2) return;
      const at = plot.cursor.left >= 0 && plot.cursor.idx != null ? Math.min(plot.cursor.idx, count - 2) : count - 2;
      const parts = this.names
        .map((name) => [name, this.values[name][at]])
        .filter(([, value]) => value > 0)
        .map(([name, value]) => `${name.replace("_", " ")} ${value}`);
      this.readout.textContent = `${clock(plot.data[0][at])}: ${parts.join(", ") || "no slots"}`;
    }
  }

  const digits = (value) => String(Number(value.toPrecision(6)));

  // A number that the program reports: a line for the mean over the workers, in a band from the lowest to the highest.
  class Reported extends Chart {
    show(t, { mean, low, high }) {
      this.draw("reported", [t.map((ms) => ms / 1000), mean, low, high], () => {
        const line = colour("b-syncing");
        const common = { spanGaps: true, points: { show: false } };
        const edge = { ...common, stroke: "transparent", width: 0 };
        const [time, values] = axes();
        return options(this.box, [{ ...common, stroke: line, width: 2 }, edge, edge], {
          scales: { y: { range: (_, least, most) => this.range(least, most) } },
          bands: [{ series: [3, 2], fill: `color-mix(in srgb, ${line} 25%, transparent)` }],
          axes: [time, { ...values, size: 64, values: (_, ticks) => ticks.map(digits) }],
          hooks: { setCursor: [(plot) => this.read(plot)] },
        });
      });
      this.read(this.plot);
    }

    range(least, most) {
      if (least == null) return [0, 1];
      const margin = (most - least) * 0.08 || Math.abs(most) * 0.1 || 1;
      return [least - margin, most + margin];
    }

    // The value at the cursor, or the last one.
    read(plot) {
      const [t, mean, low, high] = plot.data;
      const at = plot.cursor.left >= 0 && plot.cursor.idx != null ? plot.cursor.idx : mean.findLastIndex((it) => it != null);
      if (at < 0 || mean[at] == null) return;
      const range = low[at] === high[at] ? "" : ` (${digits(low[at])} to ${digits(high[at])})`;
      this.readout.textContent = `${clock(t[at])}: ${digits(mean[at])}${range}`;
    }
  }

  return { World, Goodput, Reported, colour, clock, digits };
})();
