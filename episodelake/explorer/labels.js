// The bar that labels the episode on the screen. A key is bound here, to the episode that the browser shows, and
// the next one comes at once; the server follows. `seq` counts what was sent: what the server says of the open
// episode holds once it has handled all of that.
const writing = (place) => place.closest?.("input, textarea, select, [contenteditable], .q-dialog, .q-menu");

export default {
  template: `<div :class="['card timeline labels', { behind: shown !== drawn }]">
  <q-btn v-for="each in keys" flat dense no-caps :label="each.title" :aria-label="named(each)" :title="named(each)"
    @mousedown.prevent @click="label(each.key, $event.shiftKey)" />
  <q-btn flat dense round icon="undo" :disable="!undoable" aria-label="Undo the last label (U)"
    title="Undo the last label (U)" @mousedown.prevent @click="$emit('undo')" />
  <span class="label-state">{{ shown === drawn ? state : "" }}</span>
  <input ref="note" class="label-note grow" v-model="text" placeholder="Note (N), then Enter" aria-label="Note"
    @focus="noted = shown" @change="send" @keydown.enter="$event.target.blur()"
    @keydown.esc="(text = note), $event.target.blur()" />
  <span role="status" class="muted">{{ said }}</span>
  <span class="muted" v-if="target">{{ target }}</span>
  <span class="muted label-left">{{ left }}</span>
  <q-btn v-if="waiting" flat dense no-caps :label="waiting" title="Save now" @click="$emit('save')" />
  <q-btn flat dense round icon="edit" aria-label="Keys and labels" title="Keys and labels" data-keep="labels"
    @click="$emit('declare')" />
  <div v-if="problem" class="problem label-problem">{{ problem }}</div></div>`,
  props: {
    current: String, drawn: String, handled: Number, following: Array, keys: Array, state: String, note: String,
    ticked: Number, steps: String, undoable: Boolean, left: String, waiting: String, problem: String,
  },
  emits: ["label", "undo", "mark", "save", "declare"],
  data: () => ({ shown: "", ahead: [], seq: 0, text: "", said: "", marking: false }),
  computed: {
    target() {
      if (this.marking) return "the next label goes to the steps " + (this.steps || "from here") + " to the shown one";
      if (this.ticked) return `labels go to the ${this.ticked > 1 ? `${this.ticked} ticked rows` : "ticked row"}`;
      return "";
    },
  },
  watch: {
    current: { handler: "follow", immediate: true },
    drawn: "follow",
    handled: "follow",
    following: "follow",
    note: "follow",
    steps(steps) {
      this.marking = !!steps;
    },
  },
  mounted() {
    addEventListener("keydown", this.pressed);
  },
  beforeUnmount() {
    removeEventListener("keydown", this.pressed);
  },
  methods: {
    t() {
      return Number(this.$el.closest(".stepped").querySelector("[role=slider]").getAttribute("aria-valuenow"));
    },
    named: ({ key, title }) => `${title[0].toUpperCase()}${title.slice(1)} (${key.toUpperCase()})`,
    follow() {
      const listed = [this.current, ...(this.following ?? [])];
      if (this.handled === this.seq) this.shown = this.current;
      if (listed.includes(this.shown)) this.ahead = listed.slice(listed.indexOf(this.shown) + 1);
      // A note that is being typed stays.
      if (this.shown === this.drawn && document.activeElement !== this.$refs.note) this.text = this.note;
    },
    pressed(event) {
      if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || !this.$el.offsetParent) return;
      if (writing(event.target) || document.querySelector(".q-dialog__inner")) return;
      const key = event.key.toLowerCase();
      if (key === "n") {
        this.$refs.note.focus();
        event.preventDefault();
      } else if (key === "u") this.$emit("undo");
      else if (key === "m" || (key === "escape" && this.marking)) {
        this.marking = key === "m";
        this.$emit("mark", this.marking ? this.t() : null);
      } else if (this.keys.some((each) => each.key === key)) this.label(key, event.shiftKey);
    },
    label(key, stay) {
      if (!this.shown) return;
      const next = stay || this.marking || this.ticked ? null : (this.ahead[0] ?? null);
      const many = this.ticked ? `${this.ticked} rows` : this.shown.split("/").at(-1);
      this.said = `${many}: ${this.keys.find((each) => each.key === key).title}`;
      this.$emit("label", { seq: ++this.seq, id: this.shown, key, next, t: this.t() });
      this.marking = false;
      if (!next) return;
      this.ahead.shift();
      this.shown = next;
      this.text = "";
    },
    send() {
      if (this.noted === this.drawn && this.text.trim() === this.note) return;
      this.said = `${this.noted.split("/").at(-1)}: note`;
      this.$emit("label", { seq: ++this.seq, id: this.noted, key: null, note: this.text.trim(), next: null });
    },
  },
};
