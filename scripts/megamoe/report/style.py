"""The one look of every page that this command line writes: light and dark, phone and desktop, nothing fetched."""

STYLE = """\
:root { --bg:#fff; --fg:#1c2127; --soft:#56616b; --line:#d5dbe1; --card:#f6f8fa; --accent:#1f6feb; --pass:#1a7f37;
  --bad:#c62828; --warn:#8a5a00 }
@media (prefers-color-scheme: dark) { :root { --bg:#0f1419; --fg:#e6e9ec; --soft:#a3aeb8; --line:#2e3842;
--card:#171e25; --accent:#6ea8fe; --pass:#56d17b; --bad:#ff7b72; --warn:#e3b341 } } * { box-sizing:border-box }
body { margin:0 auto; max-width:62rem; padding:1rem; background:var(--bg); color:var(--fg); font:16px/1.5 system-ui,
sans-serif; overflow-wrap:break-word } h1 { font-size:1.5rem; margin:.5rem 0 1rem }
h2 { font-size:1.15rem; margin:0 0 .5rem } h3 { font-size:1rem; margin:1rem 0 .25rem }
section { background:var(--card); border:1px solid var(--line); border-left:.3rem solid var(--line);
border-radius:.5rem; padding:1rem; margin:1rem 0 } section.pass { border-left-color:var(--pass) }
section.warn,section.not_run { border-left-color:var(--warn) }
section.fail,section.error,section.invalid,section.inconclusive,section.refused { border-left-color:var(--bad) }
.status { font-weight:700; text-transform:uppercase; white-space:nowrap } .status.pass { color:var(--pass) }
.status.warn,.status.not_run { color:var(--warn) } .soft,dt,th { color:var(--soft) }
.status.fail,.status.error,.status.invalid,.status.inconclusive,.status.refused { color:var(--bad) }
p { margin:.5rem 0 }
.figures { display:grid; grid-template-columns:repeat(auto-fit, minmax(9.5rem, 1fr)); gap:.75rem; margin:1rem 0 }
.figures div { border:1px solid var(--line); border-radius:.4rem; padding:.5rem .75rem }
.figures b { display:block; font-size:1.25rem } table { border-collapse:collapse; width:100% }
td,th { text-align:left; padding:.35rem .75rem .35rem 0; vertical-align:top; border-top:1px solid var(--line) }
th { font-weight:600; border-top:0 } td.n,th.n { white-space:nowrap; text-align:right; padding-right:0 }
td.name { white-space:nowrap }
dl { display:grid; grid-template-columns:max-content minmax(0, 1fr); gap:.25rem 1rem; margin:0 }
dd { margin:0; overflow-wrap:anywhere } li { margin:.6rem 0 } ul { padding-left:1.2rem; margin:.75rem 0 0 }
code,.mono { font-family:ui-monospace, monospace; font-size:.88em; overflow-wrap:anywhere }
figure { margin:1rem 0 0; max-width:30rem }
figcaption { color:var(--soft); font-size:.9rem }
.plots { display:grid; gap:0 1.5rem; grid-template-columns:repeat(auto-fit, minmax(min(100%, 26rem), 1fr)) }
svg { width:100%; height:auto; display:block } svg text { fill:var(--fg); font:13px system-ui, sans-serif }
svg .quiet { fill:var(--soft) } .axis { stroke:var(--line); stroke-width:1.5 }
.band { fill:var(--accent); opacity:.4 } .point { fill:var(--accent) } .lost { fill:var(--bad) }
.gained { fill:var(--pass) } .mark { stroke:var(--bad); stroke-width:2 }
.curve { fill:none; stroke:var(--accent); stroke-width:2 }
@media (max-width:36rem) { body { padding:.6rem } section { padding:.75rem } dl { grid-template-columns:1fr; gap:0 }
  dd { margin-bottom:.5rem } .figures { grid-template-columns:1fr 1fr } .rows thead { display:none }
  .rows,.rows tbody,.rows tr,.rows td { display:block } .rows tr { border-top:1px solid var(--line); padding:.4rem 0 }
  .rows td { border:0; padding:0 } .rows td.name,.rows td.status { display:inline-block; margin-right:.6rem }
  .rows td.n { text-align:left; color:var(--soft) } .rows td.n::after { content:" " attr(data-unit) }
  .rows td[data-name]::before { content:attr(data-name) ": "; color:var(--soft) } svg text { font-size:16px } }
"""
