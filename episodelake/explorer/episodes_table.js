// The list of episodes. Its cells are drawn by one component: those of slots that the page fills would be made
// anew at every change of anything on the page.
export default {
  template: `<q-table flat bordered dense binary-state-sort :rows="rows" :columns="columns" :pagination="pagination"
    :selected="selected" :rows-per-page-options="[25, 50, 100, 200]" rows-per-page-label="Rows"
    :table-row-class-fn="openClass" @update:pagination="paged" @request="requested" @selection="chosen"
    @row-click="clicked">
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
  <template #body-cell-episode_id="props"><td class="text-left" :title="props.row._id">
    <button class="open mono" :data-keep="props.row._id" @click.stop="$emit('open', props.row)"
    @keydown.space.stop.prevent="props.selected = !props.selected"
    @keydown.shift.enter.stop.prevent="$emit('beside', props.row)">{{ props.value }}</button>
    <button class="beside" tabindex="-1" :aria-label="'Open beside: ' + props.value" title="Open beside"
    @click.stop="$emit('beside', props.row)">
    <i class="material-icons" aria-hidden="true">vertical_split</i></button></td></template>
  <template #body-cell-end_reason="props"><td class="text-left"><span :class="['end', props.value]">
    {{ props.value }}</span></td></template>
  </q-table>`,
  props: ["rows", "columns", "pagination", "selected"],
  emits: ["request", "selection", "rowClick", "open", "beside", "update:pagination", "update:fullscreen"],
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
