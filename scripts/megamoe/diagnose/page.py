"""The catalogue as a page: `python -m megamoe.diagnose.page > scripts/docs/diagnose.md`."""

from __future__ import annotations

from megamoe.diagnose.catalogue import advice, rules

SPEED = (
    "Speed and memory (`scripts/bench_diagnose.py 1024`; 1 GB of synthetic engine log per row; one x86_64 core of a",
    "shared machine under load, Python 3.11.7, 2026-12-02; MB per second of CPU):",
    "",
    "| lines that hold a word of the catalogue | MB/s | peak memory |",
    "|---|---|---|",
    "| none | 140 | 43 MiB |",
    "| 0.1 % | 104 | 45 MiB |",
    "| 1 % | 129 | 46 MiB |",
    "| every line | 27 | 46 MiB |",
    "",
    "What limits it: six translations of each chunk where nothing is found; where much is found, Python's work for",
    "each place. Lines inside a stack trace are looked at one by one.",
)


def page() -> str:
    """Markdown, byte-identical for the same catalogue."""
    by_rule = {r.id: r for r in rules()}
    out = ["# What `megamoe diagnose` can name", "",
           "Generated from `scripts/megamoe/diagnose/catalogue.toml` by `python -m megamoe.diagnose.page`. "
           "Do not edit.", "",
           *SPEED, ""]
    for name, entry in sorted(advice().items()):
        rule = by_rule.get(name)
        if rule is not None and rule.kind in ("marker", "benign") and rule.fix in ("-", ""):
            continue
        out += [f"## {name}", "", entry.what[:1].upper() + entry.what[1:] + ".", "", f"- Why: {entry.why}",
                f"- Do: {entry.fix}", f"- Source: {entry.source}"]
        if entry.when:
            out.append(f"- When: {entry.when}")
        if rule is not None:
            out.append(f"- Kind of line: {rule.kind}; for example `{rule.examples[0].replace('`', chr(39))}`")
            out.append(f"- Not: `{rule.counter[0].replace('`', chr(39))}`")
        out.append("")
    return "\n".join(out)


if __name__ == "__main__":
    print(page(), end="")
