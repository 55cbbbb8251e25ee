// Draws facets: categories as buttons, and histograms that a drag or keys choose from.
const most = (numbers) => Math.max(1, ...numbers);

export default {
  template: `<div class="facet-list">
  <section v-for="facet in facets" :key="facet.name" class="facet">
    <h2 class="facet-title" :title="facet.title">{{ facet.title }}</h2>
    <template v-if="facet.bins">
      <div class="facet-bars" role="slider" tabindex="0" :data-facet="facet.name" :title="facet.note"
        :aria-label="facet.title + ': arrows choose a bar, Shift and arrows a range, Enter filters'"
        aria-valuemin="0" :aria-valuemax="facet.bins - 1" :aria-valuenow="range(facet)[1]"
        :aria-valuetext="rangeText(facet)"
        @pointerdown.prevent="begin(facet, $event)" @pointermove="drag(facet, $event)" @pointerup="end(facet)"
        @pointercancel="held = null" @pointerleave="leave" @keydown="press(facet, $event)">
        <svg :viewBox="'0 0 ' + facet.bins + ' 1'" preserveAspectRatio="none" aria-hidden="true">
          <rect v-if="held?.name === facet.name" class="held" y="0" height="1" :x="range(facet)[0]"
            :width="range(facet)[1] - range(facet)[0] + 1" />
          <rect v-for="bar in bars(facet)" :class="bar.kind" :x="bar.x + 0.05" width="0.9"
            :y="1 - bar.height" :height="bar.height" />
        </svg>
      </div>
      <div class="facet-ends"><span>{{ facet.ends[0][0] }}</span>
        <span v-if="held?.name === facet.name" class="facet-range">{{ rangeText(facet) }}</span>
        <span>{{ facet.ends.at(-1)[1] }}</span></div>
      <div v-if="facet.note" class="facet-note">{{ facet.note }}</div>
    </template>
    <button v-for="(label, i) in facet.labels.slice(facet.bins)" class="facet-row" :data-facet="facet.name"
      :aria-pressed="facet.pressed[i]" :title="label" @click="pick(facet, facet.bins + i, facet.bins + i)">
      <span class="facet-fill" :style="{ width: share(facet, i) }"></span>
      <span class="facet-label">{{ label }}</span>
      <span class="facet-count">{{ facet.counts[facet.bins + i].toLocaleString("en-US") }}</span></button>
  </section></div>`,
  props: { facets: { type: Array, default: () => [] } },
  data: () => ({ held: null }),
  methods: {
    bars({ bins, counts, totals }) {
      const of = (kind, numbers) => {
        const highest = most(numbers.slice(0, bins));
        // A single episode among many stays visible.
        const height = (n) => (n ? Math.max(n / highest, 0.04) : 0);
        return numbers.slice(0, bins).map((n, x) => ({ kind, x, height: height(n) }));
      };
      return [...of("total", totals), ...of("count", counts)];
    },
    share(facet, i) {
      const counts = facet.counts.slice(facet.bins);
      return (100 * counts[i]) / most(counts) + "%";
    },
    range(facet) {
      const { name, from, to } = this.held ?? {};
      return name === facet.name ? [Math.min(from, to), Math.max(from, to)] : [0, facet.bins - 1];
    },
    rangeText(facet) {
      const [first, last] = this.range(facet);
      const count = facet.counts.slice(first, last + 1).reduce((sum, n) => sum + n, 0);
      const label = first === last ? facet.labels[first] : facet.ends[first][0] + " to " + facet.ends[last][1];
      return label + ": " + count.toLocaleString("en-US");
    },
    place(facet, event) {
      const { left, width } = event.currentTarget.getBoundingClientRect();
      const bin = Math.floor(((event.clientX - left) / width) * facet.bins);
      return Math.min(Math.max(bin, 0), facet.bins - 1);
    },
    begin(facet, event) {
      event.currentTarget.setPointerCapture(event.pointerId);
      event.currentTarget.focus();
      const at = this.place(facet, event);
      this.held = { name: facet.name, from: at, to: at, down: true };
    },
    drag(facet, event) {
      const to = this.place(facet, event);
      if (this.held?.down) this.held.to = to;
      else this.held = { name: facet.name, from: to, to };
    },
    leave() {
      if (!this.held?.down) this.held = null;
    },
    end(facet) {
      if (this.held?.down) this.pick(facet, ...this.range(facet));
      this.held = null;
    },
    press(facet, event) {
      const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (step) {
        const held = this.held?.name === facet.name ? this.held : { from: step > 0 ? -1 : facet.bins };
        const to = Math.min(Math.max((held.to ?? held.from) + step, 0), facet.bins - 1);
        this.held = { name: facet.name, from: event.shiftKey && held.to != null ? held.from : to, to };
      } else if (event.key === "Enter" && this.held) {
        this.pick(facet, ...this.range(facet));
        this.held = null;
      } else return;
      event.preventDefault();
      event.stopPropagation();
    },
    pick(facet, first, last) {
      this.$emit("pick", { name: facet.name, version: facet.version, first, last });
    },
  },
};
