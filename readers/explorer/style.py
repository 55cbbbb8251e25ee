"""Colours and measures of the page, for light and dark screens."""

COLORS = {
    "primary": "#0f766e",
    "secondary": "#475569",
    "accent": "#0f766e",
    "positive": "#2f9e5f",
    "negative": "#e0524c",
    "warning": "#e07b1a",
    "dark": "#16181d",
    "dark_page": "#0f1115",
}

#: Where the player stands below the list, as a media query.
NARROW = "(max-width: 899px)"

STYLE = (
    """
:root { --ink: #1f2328; --soft: #667085; --line: #e4e7ec; --ground: #f6f7f9; --card: #ffffff; --wash:
  #eef6f5; --strong: #0f766e;
  --mono: ui-monospace, "SFMono-Regular", "JetBrains Mono", "DejaVu Sans Mono", Menlo, Consolas,
  monospace; }
.body--dark { --ink: #e6e6e6; --soft: #9aa4b2; --line: #2a2e37; --ground: #0f1115; --card: #16181d;
  --wash: #12302d; --strong: #4fd1c5; }
body { color: var(--ink); background: var(--ground); font-size: 13px; overflow: hidden;
  font-family: system-ui, -apple-system, "Segoe UI", Inter, Helvetica, Arial, sans-serif; }
.nicegui-content { padding: 0; gap: 0; height: 100vh; width: 100vw; flex-wrap: nowrap; }
.explorer-header { display: flex; align-items: center; gap: 14px; height: 46px; padding: 0 14px; width:
  100%; flex: none;
  background: var(--card); border-bottom: 1px solid var(--line); }
.brand { font-weight: 650; font-size: 15px; letter-spacing: -0.01em; color: var(--strong); }
.store-path { font-family: var(--mono); font-size: 12px; max-width: 34vw; overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; font-weight: 600; }
.muted { color: var(--soft); white-space: nowrap; }
.live { display: flex; align-items: center; gap: 6px; }
.dot { width: 7px; height: 7px; border-radius: 50%; background: var(--soft); display: inline-block; }
.dot.following { background: #2f9e5f; animation: breathe 3s ease-in-out infinite; }
@keyframes breathe { 50% { opacity: .35 } }
@media (prefers-reduced-motion: reduce) { .dot.following { animation: none } }
.explorer-header .q-btn { color: var(--ink); }
.explorer-header .q-tab__icon, .q-btn:not(.q-btn--round) .q-icon { font-size: 17px; }
.q-btn:not(.q-btn--round) .q-icon.on-left { margin-right: 5px; }
.q-btn { font-weight: 500; font-size: 13px; }
.q-btn-toggle .q-btn { padding: 2px 8px; }
.explorer-header .q-tab { min-height: 34px; color: var(--soft); }
.explorer-header .q-tab--active { color: var(--strong); }
.banner { width: 100%; padding: 8px 14px; flex: none; }
.problem { color: #b42318; background: #fef3f2; white-space: pre-wrap; overflow-wrap: anywhere;
  font-size: 12px; padding: 8px 10px; border-radius: 6px; }
.body--dark .problem { color: #fda29b; background: #2b1512; }
.explorer-body { width: 100%; flex: 1; min-height: 0; background: transparent; }
.explorer-panel { padding: 0 !important; height: 100%; }
.explorer-split { height: 100%; width: 100%; }
.explorer-split > .q-splitter__separator { background: var(--line); }
.pane { display: flex; flex-direction: column; height: 100%; min-height: 0; padding: 12px 14px; gap: 8px;
  flex-wrap: nowrap; width: 100%; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.mono { font-family: var(--mono); font-size: 12px; }
.bar { display: flex; align-items: center; gap: 8px; width: 100%; flex: none; }
.q-field--outlined .q-field__control { border-radius: 8px; }
.q-field--dense .q-field__control, .q-field--dense .q-field__marginal { height: 36px; min-height: 36px; }
.overview { width: 100%; flex: none; padding: 4px 10px 0; }
.overview .q-tab { min-height: 30px; font-size: 12px; padding: 0 10px; color: var(--soft); }
.overview .q-tab--active { color: var(--strong); }
.chart-place { width: 100%; overflow: hidden; color: var(--ink); }
.vega-embed { width: auto !important; padding: 0 !important; display: block; }
.episodes-table { border-color: var(--line) !important; flex: 1; min-height: 0; width: 100%; background:
  var(--card); }
.episodes-table .q-table__middle { flex: 1; }
.episodes-table thead th { position: sticky; top: 0; z-index: 2; background: var(--card); color:
  var(--soft); font-weight: 550; font-size: 12px; }
.episodes-table th, .episodes-table td { padding: 3px 10px !important; height: 30px !important;
  border-color: var(--line) !important; }
.episodes-table td { font-size: 12.5px; font-variant-numeric: tabular-nums; }
.episodes-table tbody tr { cursor: pointer; }
.episodes-table tbody tr.open-a td, .episodes-table tbody tr.open-b td { background: var(--wash); }
.episodes-table tbody tr.open-a td:first-child { box-shadow: inset 3px 0 0 var(--strong); }
.episodes-table tbody tr.open-b td:first-child { box-shadow: inset 3px 0 0 #e07b1a; }
.episodes-table .q-table__bottom { min-height: 38px; padding: 0 10px; border-color: var(--line); color:
  var(--soft); }
.beside, .tick { width: 24px; height: 24px; padding: 0; border: 0; border-radius: 50%; background: none;
  color: inherit; vertical-align: middle; cursor: pointer; line-height: 1; }
.beside:hover, .tick:hover { background: var(--line); }
.beside i { font-size: 15px; vertical-align: middle; } .tick i { font-size: 19px; vertical-align: middle; }
.tick { color: var(--soft); } .tick[aria-checked=true] { color: var(--strong); }
.beside { margin-left: 6px; opacity: 0; transition: opacity .1s; }
tr:hover .beside, tr.open-b .beside, .beside:focus { opacity: 1; }
.end::before { content: ""; display: inline-block; width: 7px; height: 7px; margin: 0 6px 1px 0;
  border-radius: 2px; background: #7d8794; }
.end.terminated::before { background: #3b82f6; } .end.truncated::before { background: #e07b1a; }
  .end.interrupted::before { background: #e0524c; }
.player { overflow-y: auto; } .player > :not(.empty) { flex: none; }
.panes { display: grid; grid-auto-flow: column; grid-auto-columns: minmax(0, 1fr); gap: 10px; width: 100%; }
.episode { padding: 12px; display: flex; flex-direction: column; gap: 10px; min-width: 0; align-items:
  stretch; }
.episode.first { border-top: 3px solid var(--strong); } .episode.second { border-top: 3px solid #e07b1a; }
.episode-id { font-family: var(--mono); font-size: 12.5px; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; }
.figures { display: flex; flex-wrap: wrap; gap: 4px 18px; }
.figure-value { font-size: 17px; font-weight: 600; font-variant-numeric: tabular-nums; line-height: 1.2; }
.figure-name { font-size: 11px; color: var(--soft); }
.now { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: 12px; align-items: start; }
.panes.two .now { grid-template-columns: minmax(0, 1fr); }
.frame { display: block; width: 300px; max-width: 100%; max-height: 320px; object-fit: contain;
  border-radius: 6px; background: #000; }
.frame.small { image-rendering: pixelated; }
.facts { display: grid; grid-template-columns: minmax(90px, max-content) minmax(0, 1fr); gap: 2px 12px;
  font-size: 12px; width: 100%; max-height: 300px; overflow-y: auto; }
.facts dt { color: var(--soft); overflow-wrap: anywhere; } .facts dd { margin: 0; font-family:
  var(--mono); overflow-wrap: anywhere; font-variant-numeric: tabular-nums; white-space: pre-wrap; }
.facts h4 { grid-column: 1 / -1; font-size: 11px; color: var(--soft); text-transform: uppercase;
  letter-spacing: .05em; margin: 6px 0 0; line-height: 1.6; font-weight: 600; }
.timeline { position: sticky; top: 0; z-index: 5; display: flex; align-items: center; gap: 10px; padding:
  4px 12px; width: 100%; }
.timeline .t { font-family: var(--mono); font-size: 12px; min-width: 92px; text-align: right;
  white-space: nowrap; }
body.body--dark { --q-primary: #14b8a6 !important; }
.empty { flex: 1; display: flex; flex-direction: column; align-items: center; justify-content: center;
  gap: 6px; color: var(--soft); text-align: center; }
.q-expansion-item .q-item { padding: 4px 0; min-height: 30px; color: var(--soft); font-size: 12px; }
.nicegui-expansion .q-expansion-item__content { padding: 4px 0; }
.pane.scrolling { overflow-y: auto; } .pane.scrolling > * { flex: none; }
.sql-text { width: 100%; border: 1px solid var(--line); border-radius: 8px; overflow: hidden; font-size:
  13px; }
.result-table { width: 100%; background: var(--card); } .result-table td { font-family: var(--mono);
  font-size: 12px; max-width: 420px; overflow: hidden; text-overflow: ellipsis; }
.q-btn--dense:not(.q-btn--round) { padding: 3px 10px; }
.q-btn--dense.q-btn--round { min-width: 32px; min-height: 32px; }
.bar.wrapping { flex-wrap: wrap; } .bar.wrapping > .grow { flex: 1 1 200px; }
.overview-head > .q-tabs { min-width: 0; flex: 1 1 240px; }
.episode { container-type: inline-size; }
@container (max-width: 480px) { .now { grid-template-columns: minmax(0, 1fr); } }
@media (hover: none) { .beside { opacity: 1; } }
@media """
    + NARROW
    + """ {
  .explorer-header { flex-wrap: wrap; height: auto; padding: 6px 14px; gap: 4px 14px; }
  .explorer-header > .q-space { flex: 0 0 100%; height: 0; }
  .explorer-header .q-tab { padding: 0 8px; } .explorer-header > .q-tabs { margin-right: auto; }
  .explorer-panel { overflow-y: auto !important; }
  .explorer-split { flex-direction: column !important; height: auto; }
  .explorer-split > .q-splitter__before, .explorer-split > .q-splitter__after { width: 100% !important;
    overflow: visible; }
  .explorer-split > .q-splitter__separator { display: none; }
  .explorer-split .pane { height: auto; overflow: visible; }
  .explorer-split .episodes-table { height: 60vh; flex: none; }
  .explorer-split .empty { min-height: 160px; } .explorer-split .player { min-height: 90vh; }
  .muted { white-space: normal; }
}
@media (max-width: 599px) { .panes { grid-auto-flow: row; } .brand { font-size: 14px; } }
"""
)
