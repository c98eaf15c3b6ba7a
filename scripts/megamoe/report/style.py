"""The one look of every page that this command line writes: light and dark, phone and desktop, nothing fetched."""

STYLE = """\
:root { --bg:#fff; --fg:#1c2127; --soft:#5b6670; --line:#d5dbe1; --card:#f6f8fa; --accent:#1f6feb; --pass:#1a7f37; --bad:#c62828;
  --warn:#8a5a00; }
@media (prefers-color-scheme: dark) { :root { --bg:#0f1419; --fg:#e6e9ec; --soft:#9aa5b0; --line:#2e3842; --card:#171e25;
  --accent:#6ea8fe; --pass:#56d17b; --bad:#ff7b72; --warn:#e3b341; } }
* { box-sizing:border-box } body { margin:0 auto; max-width:60rem; padding:1rem; background:var(--bg); color:var(--fg);
  font:16px/1.5 system-ui, sans-serif; overflow-wrap:anywhere }
h1 { font-size:1.5rem; margin:.5rem 0 } h2 { font-size:1.15rem; margin:0 0 .5rem }
section { background:var(--card); border:1px solid var(--line); border-radius:.5rem; padding:1rem; margin:1rem 0 }
.status { font-weight:700; text-transform:uppercase } .pass { color:var(--pass) } .warn,.not_run { color:var(--warn) }
.fail,.error,.invalid,.inconclusive,.refused { color:var(--bad) } .soft,dt { color:var(--soft) }
table { border-collapse:collapse; width:100% } td,th { text-align:left; padding:.3rem .6rem .3rem 0; vertical-align:top;
  border-top:1px solid var(--line) } td,th { overflow-wrap:break-word } .status { white-space:nowrap } td.n { white-space:nowrap; text-align:right; padding-right:0 }
dl { display:grid; grid-template-columns:minmax(8rem, max-content) 1fr; gap:.2rem 1rem; margin:0 } dd { margin:0 }
li { margin:.6rem 0 } ul { padding-left:1.2rem } code { font-size:.9em }
svg { width:100%; height:auto; display:block; margin:.8rem 0 } svg text { fill:var(--fg); font:14px system-ui, sans-serif }
.axis { stroke:var(--line); stroke-width:2 } .band { fill:var(--accent); opacity:.45 } .point { fill:var(--accent) }
.mark { stroke:var(--bad); stroke-width:2 } .curve { fill:none; stroke:var(--accent); stroke-width:2 }
@media (max-width:32rem) { dl { grid-template-columns:1fr; gap:0 } dd { margin-bottom:.5rem } svg text { font-size:20px } }
"""
