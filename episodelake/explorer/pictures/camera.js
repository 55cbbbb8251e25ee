// Draws the frames of a camera at the steps that the page plays: of packs of pictures, or of packets that the
// browser decodes. A pack is the size of its head, the head as JSON, and the pictures one behind the other.
const KEPT_BYTES = 64e6;
const AHEAD = 8;
// The steps that keys lead to.
const NEAR = [0, 1, -1, 2, -2, 3, 10, -10];
// Packs that are fetched ahead at most, while an episode plays.
const MOST_AHEAD = 6;

async function unpacked(url) {
  const answer = await fetch(url);
  if (answer.status !== 200) throw new Error("The frames are gone.");
  const content = await answer.arrayBuffer();
  const size = new DataView(content).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(content, 4, size)));
  let end = 4 + size;
  for (const frame of head.frames) {
    frame.data = new Uint8Array(content, end, frame.size);
    end += frame.size;
  }
  return { ...head, bytes: content.byteLength };
}

export default {
  template: `<figure data-steps :class="{ differs }">
    <button class="enlarge" :aria-label="'Enlarge ' + name" @mousedown.prevent @click="enlarge"
      @keydown.esc="large && enlarge()">
      <canvas ref="frame" class="frame" :class="{ small }" role="img" :aria-label="label"></canvas>
    </button><figcaption class="caption">{{ caption }}</figcaption></figure>`,
  props: { source: Object, name: String },
  emits: ["problem"],
  data: () => ({ label: "", caption: "", differs: false, small: false, large: false }),
  created() {
    this.caption = this.name;
    this.begin();
  },
  mounted() {
    this.$el.stepper = this;
    this.$el.dispatchEvent(new CustomEvent("joined", { bubbles: true }));
  },
  beforeUnmount() {
    clearTimeout(this.timer);
    this.begin();
  },
  watch: {
    source(now, before) {
      if (now.url !== before.url) this.begin();
      this.again();
    },
  },
  methods: {
    begin() {
      this.drop(() => true);
      [this.images, this.packs, this.exact] = [new Map(), new Map(), null];
      // Pages without encryption have no decoder, but those of this machine.
      this.encoded = this.source.encoded && "VideoDecoder" in window;
    },
    drop(unwanted) {
      for (const [at, image] of this.images ?? []) {
        if (!unwanted(at)) continue;
        image.bitmap?.close();
        this.images.delete(at);
      }
    },
    place(t) {
      return Math.min(Math.max(t + this.source.zero, 0), this.source.count - 1);
    },
    again() {
      if (this.t !== undefined) this.show(this.t, this.rate);
    },
    // Shows a step; rate is the number of steps a second, and 0 where the step stands still.
    show(t, rate) {
      [this.t, this.rate] = [t, rate];
      clearTimeout(this.timer);
      const here = this.place(t);
      const stride = Math.max(1, Math.floor(rate / 60));
      for (let i = 0; i < AHEAD; i++) this.load(here + (rate ? i * stride : NEAR[i]));
      const { rows } = this.source;
      const packs = Math.max(1, Math.min(MOST_AHEAD, Math.ceil((1.5 * rate) / rows)));
      for (let more = 1; more <= packs; more++) this.pack(here + more * rows).catch(() => {});
      this.draw();
      if (!rate && this.source.lossy && !this.encoded) this.timer = setTimeout(() => this.sharpen(here), 60);
    },
    ready(t) {
      const image = this.images.get(this.place(t));
      return !!image?.bitmap || !!image?.failed;
    },
    async pack(at) {
      const { url, rows, count } = this.source;
      const first = at - (at % rows);
      if (first >= count) return null;
      const pack = this.packs.get(first) ?? unpacked(`${url}/${first}${this.encoded ? "?want=packets" : ""}`);
      this.packs.delete(first);
      this.packs.set(first, pack);
      try {
        pack.bytes = (await pack).bytes;
      } catch (error) {
        this.packs.delete(first);
        throw error;
      }
      const sizes = [...this.packs.values()].map((each) => each.bytes ?? 0);
      let size = sizes.reduce((sum, each) => sum + each, 0);
      for (const old of [...this.packs.keys()].slice(0, -MOST_AHEAD - 2)) {
        if (size <= KEPT_BYTES) break;
        size -= this.packs.get(old).bytes ?? 0;
        this.packs.delete(old);
      }
      return pack;
    },
    async load(at) {
      const { images, source } = this;
      if (at < 0 || at >= source.count || (images.has(at) && (this.rate || !images.get(at).failed))) return;
      images.set(at, {});
      try {
        const pack = await this.pack(at);
        if (pack.problem) this.$emit("problem", pack.problem);
        if (!pack.codec) return this.keep(images, at, await this.decoded(pack.frames[at % source.rows]));
        pack.decoding ??= this.decode(pack, at, images).finally(() => (pack.decoding = null));
        await pack.decoding;
        if (images.has(at) && !images.get(at).bitmap) throw new Error("No packet has this frame.");
      } catch {
        images.set(at, { failed: true });
      }
    },
    keep(images, at, image) {
      if (images !== this.images || images.get(at)?.bitmap) return image.bitmap.close();
      images.set(at, image);
      const { bitmap } = image;
      const bytes = bitmap.allocationSize?.() ?? 4 * bitmap.width * bitmap.height;
      const room = Math.max(4 * AHEAD, KEPT_BYTES / bytes);
      const here = this.place(this.t);
      if (images.size > room) this.drop((each) => each < here - room / 3 || each > here + room / 2);
      if (at === here) this.draw();
    },
    async decoded(frame) {
      const exactly = { colorSpaceConversion: "none", premultiplyAlpha: "none" };
      return { ...frame, bitmap: await createImageBitmap(new Blob([frame.data]), exactly) };
    },
    // Decodes a pack, from the keyframe before a step on, and then what is before it.
    async decode({ codec, frames }, at, images) {
      const first = at - (at % this.source.rows);
      const decoder = new VideoDecoder({
        output: (bitmap) => {
          const t = bitmap.timestamp;
          if (t < first || t >= first + this.source.rows) bitmap.close();
          else this.keep(images, t, { t, bitmap });
        },
        error: () => {},
      });
      try {
        // Decoders of hardware stop while many of their frames are kept.
        decoder.configure({ codec, optimizeForLatency: true, hardwareAcceleration: "prefer-software" });
        const start = frames.findLastIndex(({ key, t }) => key && t <= at);
        for (const { key, t, data } of [...frames.slice(start), ...frames.slice(0, start)])
          decoder.decode(new EncodedVideoChunk({ type: key ? "key" : "delta", timestamp: t, data }));
        await decoder.flush();
        decoder.close();
      } catch {
        // One that the browser cannot decode: pictures come instead.
        if (images === this.images) this.pictures();
      }
    },
    pictures() {
      this.begin();
      this.encoded = false;
      this.again();
    },
    // Large frames lose some quality while they pass by; one that stands still is exact.
    async sharpen(at) {
      const { url } = this.source;
      const { frames } = await unpacked(`${url}/${at}?want=exact`).catch(() => ({ frames: [] }));
      if (!frames.length || url !== this.source.url) return;
      this.exact = { ...(await this.decoded(frames[0])), at };
      this.draw();
    },
    draw() {
      const here = this.place(this.t);
      const shown = this.exact?.at === here && !this.rate ? this.exact : this.images.get(here);
      const canvas = this.$refs.frame;
      if (!shown?.bitmap || !canvas) return;
      const { displayWidth, displayHeight, width = displayWidth, height = displayHeight } = shown.bitmap;
      if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
      this.small = width <= 128;
      canvas.getContext("2d").drawImage(shown.bitmap, 0, 0);
      this.tell(shown);
    },
    tell({ t, difference }) {
      const asked = Math.min(this.t + this.source.zero, this.source.last);
      const late = t < asked ? `: the last frame, of t = ${t.toLocaleString("en-US")}` : "";
      this.label = `${this.name} at t = ${t}`;
      this.caption = this.name + late + (difference ? `: not what was recorded, since ${difference}` : "");
      this.differs = !!difference;
    },
    enlarge() {
      // A popover, since an episode holds what is fixed inside of it.
      this.large = !this.large;
      this.$el.popover = this.large ? "manual" : null;
      if (this.large) this.$el.showPopover();
    },
  },
};
