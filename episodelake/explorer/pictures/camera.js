// Draws the frames of a camera at the steps that the page plays: of a video, or of packs of pictures. A pack is
// the size of its head, the head as JSON, and the pictures one behind the other.
const KEPT_BYTES = 64e6;
const KEPT_PIXELS = 16e6;
const AHEAD = 8;
// Packs that are fetched ahead at most, while an episode plays.
const MOST_AHEAD = 6;
// Seconds by which a video may be away from the others before it is set right.
const APART = 0.3;

async function unpacked(url) {
  const answer = await fetch(url);
  if (answer.status !== 200) throw new Error("The frames are gone.");
  const content = await answer.arrayBuffer();
  const size = new DataView(content).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(content, 4, size)));
  let end = 4 + size;
  for (const frame of head.frames) {
    frame.file = new Blob([new Uint8Array(content, end, frame.size)]);
    end += frame.size;
  }
  return { ...head, bytes: content.byteLength };
}

export default {
  template: `<figure data-steps :class="{ differs }">
    <button class="enlarge" :aria-label="'Enlarge ' + name" @mousedown.prevent @click="enlarge"
      @keydown.esc="large && enlarge()">
      <video v-if="video" ref="frame" class="frame" :class="{ small }" :src="video" :aria-label="label" muted
        playsinline preload="auto" @seeked="again" @loadeddata="again" @error="broken"></video>
      <canvas v-else ref="frame" class="frame" :class="{ small }" role="img" :aria-label="label"></canvas>
    </button><figcaption class="caption">{{ caption }}</figcaption></figure>`,
  props: { source: Object, name: String },
  emits: ["problem"],
  data: () => ({ label: "", caption: "", differs: false, small: false, large: false, video: null }),
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
    this.drop(() => true);
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
      this.video = this.source.video;
      this.small = !!this.video && this.source.width <= 128;
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
      if (this.video) return this.seek();
      const here = this.place(t);
      const stride = Math.max(1, Math.floor(rate / 60));
      for (let ahead = 0; ahead < AHEAD; ahead++) this.load(here + ahead * stride);
      const { rows } = this.source;
      const packs = Math.max(1, Math.min(MOST_AHEAD, Math.ceil((1.5 * rate) / rows)));
      for (let more = 1; more <= packs; more++) this.pack(here + more * rows).catch(() => {});
      this.draw();
      if (!rate && this.source.lossy) this.timer = setTimeout(() => this.sharpen(here), 60);
    },
    ready(t) {
      const here = this.place(t);
      const image = this.images.get(here);
      if (!this.video) return !!image?.bitmap || !!image?.failed;
      const { seeking, readyState } = this.$refs.frame ?? {};
      return !seeking && readyState > 2;
    },
    // A video that plays is the clock of all others.
    now() {
      const video = this.video && this.$refs.frame;
      if (!video || video.paused || video.ended || this.place(this.t) >= this.source.count - 1) return null;
      // The frame on the screen is a little ahead of the time that the video says.
      return video.currentTime * this.source.fps + 0.3 - this.source.zero;
    },
    seek() {
      const video = this.$refs.frame;
      if (!video) return;
      const { fps, count } = this.source;
      const here = this.place(this.t);
      const wanted = (here + 0.5) / fps;
      const late = wanted - video.currentTime;
      const pace = this.rate / fps;
      this.tell({ t: here });
      if (pace >= 1 / 16 && pace <= 16 && here < count - 1) {
        if (Math.abs(late) > APART * Math.max(1, pace)) video.currentTime = wanted;
        const wrong = Math.abs(late) > 1.5 / fps ? Math.max(-0.5, Math.min(0.5, late / APART)) : 0;
        video.playbackRate = Math.max(1 / 16, Math.min(16, pace * (1 + wrong)));
        if (video.paused) video.play().catch(() => {});
        return;
      }
      if (!video.paused) video.pause();
      if (!video.seeking && Math.abs(late) > 0.2 / fps) video.currentTime = wanted;
    },
    broken() {
      // One that the browser cannot play, or that cannot be made.
      this.video = null;
      this.$nextTick(this.again);
    },
    async pack(at) {
      const { url, rows, count } = this.source;
      const first = at - (at % rows);
      if (first >= count) return null;
      const pack = this.packs.get(first) ?? unpacked(`${url}/${first}`);
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
      if (at >= source.count || (images.has(at) && (this.rate || !images.get(at).failed))) return;
      images.set(at, {});
      try {
        const { problem, frames } = await this.pack(at);
        if (problem) this.$emit("problem", problem);
        const image = await this.decoded(frames[at % source.rows]);
        if (images !== this.images || !images.has(at)) return image.bitmap.close();
        images.set(at, image);
        const room = Math.max(4 * AHEAD, KEPT_PIXELS / (image.bitmap.width * image.bitmap.height));
        const here = this.place(this.t);
        if (images.size > room) this.drop((each) => each < here - 2 || each > here + room / 2);
        if (at === here) this.draw();
      } catch {
        images.set(at, { failed: true });
      }
    },
    async decoded(frame) {
      const exactly = { colorSpaceConversion: "none", premultiplyAlpha: "none" };
      return { ...frame, bitmap: await createImageBitmap(frame.file, exactly) };
    },
    // Large frames lose some quality while they pass by; one that stands still is exact.
    async sharpen(at) {
      const { url } = this.source;
      const { frames } = await unpacked(`${url}/${at}?exact=1`).catch(() => ({ frames: [] }));
      if (!frames.length || url !== this.source.url) return;
      this.exact = { ...(await this.decoded(frames[0])), at };
      this.draw();
    },
    draw() {
      const here = this.place(this.t);
      const shown = this.exact?.at === here && !this.rate ? this.exact : this.images.get(here);
      const canvas = this.$refs.frame;
      if (!shown?.bitmap || !canvas || this.video) return;
      const { width, height } = shown.bitmap;
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
