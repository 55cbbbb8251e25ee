// The tables of episodes, runs and stores. Their cells are drawn by one component: those of slots that the page fills would be made
// anew at every change of anything on the page.
export default {
  template: `<q-table flat bordered dense binary-state-sort :rows="rows" :columns="columns" :pagination="pagination"
    :selected="selected" :rows-per-page-options="[25, 50, 100, 200]" rows-per-page-label="Rows"
    :table-row-class-fn="openClass" :grid="grid" @update:pagination="paged" @request="requested" @selection="chosen"
    :filter="filter" @row-click="clicked">
  <template #header-selection="props"><button role="checkbox" class="tick" aria-label="Tick all rows of the page"
    :aria-checked="props.selected ?? 'mixed'" @click.stop="props.selected = !props.selected">
    <i class="material-icons" aria-hidden="true">check_box{{ props.selected ? "" : "_outline_blank" }}</i>
    </button></template>
  <template #header-cell="props"><th :class="[props.col.__thClass, 'text-' + props.col.align]"
    :aria-sort="order(props.col)">
    <button v-if="props.col.sortable" class="sort" :data-keep="'sort ' + props.col.name"
    @click="props.sort(props.col)">{{ props.col.label }}
    <i class="material-icons" aria-hidden="true">arrow_upward</i></button>
    <span v-else>{{ props.col.label }}</span></th></template>
  <template #body-selection="props"><button role="checkbox" class="tick" tabindex="-1"
    :aria-label="'Tick ' + props.row._id" :aria-checked="props.selected"
    @click.stop="props.selected = !props.selected">
    <i class="material-icons" aria-hidden="true">check_box{{ props.selected ? "" : "_outline_blank" }}</i>
    </button></template>
  <template #item="props"><div :class="['shot', props.row._open]">
    <button class="shot-open" :data-keep="props.row._id" :title="props.row._id" @click="$emit('open', props.row)"
    @keydown.space.stop.prevent="props.selected = !props.selected"
    @keydown.shift.enter.stop.prevent="$emit('beside', props.row)">
    <span class="thumb"><img v-if="props.row._sheet" :src="props.row._sheet" loading="lazy" fetchpriority="low" alt=""></span>
    <span class="shot-name mono">{{ props.row.episode_id }}</span><span class="shot-facts">
    <span v-for="col in props.cols.filter(({ name }) => facts.includes(name))" :class="[col.name === 'end_reason' && 'end', col.value]">
    {{ col.name === "end_reason" ? "" : col.label }} {{ col.value }}</span></span></button>
    <button role="checkbox" class="tick" tabindex="-1" :aria-label="'Tick ' + props.row._id" :aria-checked="props.selected"
    @click="props.selected = !props.selected">
    <i class="material-icons" aria-hidden="true">check_box{{ props.selected ? "" : "_outline_blank" }}</i></button>
    <button class="beside" tabindex="-1" :aria-label="'Open beside: ' + props.row.episode_id" title="Open beside"
    @click="$emit('beside', props.row)"><i class="material-icons" aria-hidden="true">vertical_split</i></button>
    </div></template>
  <template #body-cell-episode_id="props"><td class="text-left" :title="props.row._id">
    <span v-if="props.row._sheet" class="thumb"><img :src="props.row._sheet + (quick ? '' : '?still=1')" loading="lazy" fetchpriority="low" alt=""></span>
    <button class="open mono" :data-keep="props.row._id" @click.stop="$emit('open', props.row)"
    @keydown.space.stop.prevent="props.selected = !props.selected"
    @keydown.shift.enter.stop.prevent="$emit('beside', props.row)">{{ props.value }}</button>
    <button class="beside" tabindex="-1" :aria-label="'Open beside: ' + props.value" title="Open beside"
    @click.stop="$emit('beside', props.row)">
    <i class="material-icons" aria-hidden="true">vertical_split</i></button></td></template>
  <template #body-cell-end_reason="props"><td class="text-left"><span :class="['end', props.value]">
    {{ props.value }}</span></td></template>
  <template #body-cell-run="props"><td class="text-left" :title="props.value">
    <span class="run-key" :style="{ background: props.row._color }"></span>{{ props.value }}</td></template>
  <template #body-cell-curve="props"><td class="text-left"><svg v-if="props.value" class="curve" viewBox="0 0 100 20"
    preserveAspectRatio="none" role="img" :aria-label="'Curve of ' + props.row._id">
    <polyline :points="props.value" :style="{ stroke: props.row._color }" /></svg></td></template>
  <template #body-cell-store="props"><td class="text-left"><a class="mono" :href="props.row._href">{{ props.value }}</a>
    <span v-if="props.row._live" class="dot following" role="img" aria-label="recording" title="recording"></span>
    </td></template>
  <template #body-cell-health="props"><td class="text-left"><span :class="['health', props.row._severe]">
    {{ props.value }}</span></td></template>
  <template #no-data="props"><div class="nothing">{{ props.message }}
    <button v-if="clearable" class="clear" @click="$emit('clear')">Clear the filter</button></div></template>
  <template #body-cell="props"><td :class="['text-' + props.col.align, props.col.classes]"
    :title="props.row._titles?.[props.col.name]">{{ props.row._texts?.[props.col.name] ?? props.value }}</td></template>
  </q-table>`,
  props: ["rows", "columns", "pagination", "selected", "filter", "clearable", "grid", "quick"],
  emits: ["request", "selection", "rowClick", "open", "beside", "clear", "update:pagination", "update:fullscreen"],
  data: () => ({ facts: ["episode_return", "length", "end_reason"] }),
  methods: {
    openClass: (row) => row._open,
    order: ({ __thClass: names }) =>
      !names.includes("sorted") ? null : names.includes("sort-desc") ? "descending" : "ascending",
    // Handlers that stay the same, or the table would be drawn again.
    paged(pagination) {
      this.$emit("update:pagination", pagination);
    },
    requested(wanted) {
      this.$emit("request", wanted);
    },
    chosen(change) {
      this.$emit("selection", change);
    },
    clicked(...event) {
      this.$emit("rowClick", ...event);
    },
  },
};
