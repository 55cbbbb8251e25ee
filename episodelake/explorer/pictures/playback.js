// The clock of what is played: a slider, and the step that cameras and charts of the same part of the page show.
// They have data-steps, and say at "joined" that they are there.
// Milliseconds that count at most between two pictures: a slow browser is waited for.
const LONGEST = 200;
const TYPED = "input, select, textarea, [contenteditable=true], [role=dialog], [role=listbox], [role=menu]";
const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];

export default {
  template: `<div class="card timeline">
    <q-btn flat dense round :icon="playing ? 'pause' : 'play_arrow'" aria-label="Play or pause" @click="toggle">
      <q-tooltip aria-hidden="true">Play or pause (Space)</q-tooltip></q-btn>
    <q-btn flat dense round icon="repeat" aria-label="Loop" :aria-pressed="String(looped)"
      :class="{ pressed: looped }" @click="looped = !looped"><q-tooltip aria-hidden="true">Loop (L)</q-tooltip>
      </q-btn>
    <q-select dense borderless options-dense aria-label="Speed" v-model="speed" :options="speeds"
      :option-label="(each) => each + 'x'" />
    <q-slider dense class="grow" aria-label="Step" :min="first" :max="Math.max(last, first + 1)" :model-value="t"
      @update:model-value="go" />
    <div class="t">t = {{ t.toLocaleString("en-US") }} / {{ last.toLocaleString("en-US") }}</div>
    <div class="thumbnails"><img v-for="[at, url] in thumbnails" :src="url" alt="" @click="go(at)"></div>
  </div>`,
  props: {
    first: { type: Number, default: 0 },
    last: { type: Number, default: 0 },
    rate: { type: Number, default: 30 },
    thumbnails: { type: Array, default: () => [] },
    wanted: { type: Object, default: () => ({ t: 0, turn: 0, move: 0 }) },
  },
  emits: ["moved"],
  data: () => ({ t: 0, playing: false, looped: false, speed: 1, speeds: SPEEDS }),
  created() {
    this.t = this.wanted.t;
  },
  mounted() {
    this.root = this.$el.closest(".stepped");
    this.root.addEventListener("joined", this.join);
    // Before the tab that was clicked last takes the arrows for itself.
    document.addEventListener("keydown", this.press, true);
  },
  beforeUnmount() {
    this.playing = false;
    clearTimeout(this.telling);
    document.removeEventListener("keydown", this.press, true);
  },
  watch: {
    wanted({ t, turn, move }, before) {
      // One after another plays from its beginning, such as while they are labelled.
      if (turn !== before.turn && t !== this.first) this.playing = false;
      if (move !== before.move) this.go(t);
    },
  },
  methods: {
    parts() {
      return [...this.root.querySelectorAll("[data-steps]")].map((each) => each.stepper).filter(Boolean);
    },
    join(event) {
      event.target.stepper.show(this.t, this.pace());
    },
    pace() {
      return this.playing ? this.rate * this.speed : 0;
    },
    go(t) {
      this.position = this.t = Math.min(Math.max(Math.round(t), this.first), this.last);
      this.show();
    },
    show() {
      for (const part of this.parts()) part.show(this.t, this.pace());
      // What the server shows beside follows a few times a second.
      this.telling ??= setTimeout(
        () => {
          this.telling = null;
          this.$emit("moved", { t: this.t, playing: this.playing, turn: this.wanted.turn });
        },
        this.playing ? 120 : 20,
      );
    },
    toggle() {
      this.playing = !this.playing;
      if (this.playing) {
        if (this.t >= this.last) this.t = this.first;
        [this.position, this.before] = [this.t, performance.now()];
        requestAnimationFrame(this.tick);
      }
      this.show();
    },
    tick(now) {
      // Nobody sees another tab.
      if (!this.$el.checkVisibility()) this.playing = false;
      if (!this.playing) return;
      const pace = this.pace();
      const passed = (Math.min(Math.max(now - this.before, 0), LONGEST) / 1000) * pace;
      this.before = now;
      const parts = this.parts();
      const position = this.position + passed;
      const stride = Math.max(1, Math.floor(pace / 60));
      const step = Math.min(this.last, Math.floor(position / stride) * stride);
      if (parts.every((part) => part.ready?.(step) ?? true)) {
        this.position = position;
        if (this.t >= this.last && !this.looped) this.playing = false;
        if (this.looped && position >= this.last + 1) this.go(this.first);
        else if (step !== this.t || !this.playing) {
          this.t = step;
          this.show();
        }
      }
      if (this.playing) requestAnimationFrame(this.tick);
    },
    press(event) {
      const { key, target, shiftKey, repeat } = event;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (!this.$el.checkVisibility() || target.closest?.(TYPED)) return;
      const far = shiftKey ? 10 : 1;
      const faster = (by) => {
        const place = SPEEDS.indexOf(this.speed) + by;
        this.speed = SPEEDS[Math.min(Math.max(place, 0), SPEEDS.length - 1)];
      };
      const effects = {
        ArrowLeft: () => this.go(this.t - far),
        ArrowRight: () => this.go(this.t + far),
        Home: () => this.go(this.first),
        End: () => this.go(this.last),
        "+": () => faster(1),
        "-": () => faster(-1),
        l: () => repeat || (this.looped = !this.looped),
        " ": () => repeat || this.toggle(),
      };
      // Keys of what has the focus.
      const own = { " ": "button, a, [role=button], [role=tab]", ArrowLeft: "[role=slider]", ArrowRight: "[role=slider]" };
      if (!effects[key] || target.closest?.(own[key] ?? "none")) return;
      effects[key]();
      event.preventDefault();
    },
  },
};
