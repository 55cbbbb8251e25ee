// Draws a Vega-Lite specification, fits it to its place, and tells what a brush chose. Glue between NiceGUI and
// vega-embed, which the server hands out; nothing is loaded from elsewhere.
const scripts = {};

function bundle(url) {
  // Relative to the page, which lies below a random path.
  scripts[url] ??= import(new URL(url, document.baseURI)).then(() => window.vegaEmbed);
  return scripts[url];
}

// A canvas does not know the colour of the text around it.
function inked(part, ink) {
  if (part === "currentColor") return ink;
  if (Array.isArray(part)) return part.map((each) => inked(each, ink));
  if (part === null || typeof part !== "object") return part;
  return Object.fromEntries(
    Object.entries(part).map(([key, value]) => [key, key === "data" || key === "datasets" ? value : inked(value, ink)]),
  );
}

function widen(part, width) {
  if (Array.isArray(part)) return part.map((each) => widen(each, width));
  if (part === null || typeof part !== "object") return part;
  const isView = "layer" in part || "mark" in part;
  const inner = {};
  for (const [key, value] of Object.entries(part)) {
    inner[key] = key === "data" || key === "datasets" ? value : widen(value, width);
  }
  if (isView && typeof part.width === "number") inner.width = width;
  return inner;
}

export default {
  template: `<div class="chart-place" data-steps><div ref="drawing"></div></div>`,
  props: { spec: Object, bundle: String },
  data: () => ({ above: false, beside: 120 }),
  mounted() {
    this.$el.stepper = { show: this.pointAt };
    this.$el.dispatchEvent(new CustomEvent("joined", { bubbles: true }));
    this.observer = new ResizeObserver(() => {
      // A hidden chart has no width; it keeps its picture unless `draw` dropped it.
      const width = this.$el.clientWidth;
      if (width && Math.abs(width - (this.drawnAt ?? 0)) > 8) this.later();
    });
    this.observer.observe(this.$el);
    this.press = (event) => (this.pressed = event.type === "pointerdown");
    this.$el.addEventListener("pointerdown", this.press, true);
    addEventListener("pointerup", this.press, true);
    this.draw();
  },
  beforeUnmount() {
    clearTimeout(this.timer);
    removeEventListener("pointerup", this.press, true);
    this.observer.disconnect();
    this.finish();
  },
  watch: {
    spec() {
      this.draw();
    },
    "$q.dark.isActive"() {
      this.later();
    },
  },
  methods: {
    later() {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.draw(), 120);
    },
    finish() {
      this.result?.finalize();
      this.result = this.view = null;
    },
    async draw() {
      const turn = (this.turn = (this.turn ?? 0) + 1);
      if (!this.spec || !this.$el.clientWidth) {
        // Drop the outdated picture. The observer draws again once the chart is shown.
        this.finish();
        this.$refs.drawing.replaceChildren();
        this.drawnAt = 0;
        return;
      }
      const embed = await bundle(this.bundle);
      for (let attempt = 0; attempt < 2; attempt++) {
        if (turn !== this.turn || !this.$el?.isConnected) return;
        const place = this.$el.clientWidth;
        // Beside a chart on a narrow page a legend would take half of the room.
        const legend = this.spec.config?.legend;
        const above = !!legend && (legend.orient === "top" || place < 480);
        if (above !== this.above) {
          this.above = above;
          this.beside = above ? 64 : 120;
        }
        const wide = widen(JSON.parse(JSON.stringify(this.spec)), Math.max(120, place / 2, place - this.beside));
        if (above) {
          // It takes as many lines as it needs.
          const columns = Math.max(1, Math.floor(place / 150));
          Object.assign(wide.config.legend, { orient: "top", columns, labelLimit: place / columns - 36 });
        }
        const spec = inked(wide, getComputedStyle(this.$el).color);
        const options = { actions: false, renderer: "canvas", ast: false };
        this.finish();
        this.result = await embed(this.$refs.drawing, spec, options);
        this.view = this.result.view;
        this.drawnAt = place;
        const canvas = this.$refs.drawing.querySelector("canvas");
        const missing = canvas ? canvas.getBoundingClientRect().width - place : 0;
        if (Math.abs(missing + 4) < 8) break;
        this.beside += missing + 4;
      }
      this.listen();
      this.point();
      this.$emit("drawn");
    },
    listen() {
      const brush = this.spec.usermeta?.brush;
      if (!this.view || !brush) return;
      this.view.addSignalListener("brush", (_, value) => {
        clearTimeout(this.brushing);
        const send = () => {
          // Where a brush leads to another pane, it waits for the end of the drag.
          if (brush === "released" && this.pressed) this.brushing = setTimeout(send, 60);
          else this.$emit("brush", { ...value });
        };
        this.brushing = setTimeout(send, 120);
      });
    },
    pointAt(t) {
      this.t = t;
      this.point();
    },
    point() {
      const last = this.spec?.usermeta?.cursor;
      if (this.view && last && this.t !== undefined) this.view.signal("cursor", Math.min(this.t, last)).runAsync();
    },
  },
};
