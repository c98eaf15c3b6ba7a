"""The catalogue as a page: `python -m megamoe.diagnose.page > scripts/docs/diagnose.md`."""

from __future__ import annotations

from megamoe.diagnose.catalogue import advice, rules

SPEED = (
    "Speed and memory (`scripts/bench_diagnose.py 1024`; 1 GB of synthetic engine log per row; one x86_64 core of a",
    "shared machine under load, Python 3.11.7, 2026-12-03; MB per second of CPU):",
    "",
    "| entries of the log | MB/s | peak memory |",
    "|---|---|---|",
    "| none holds a word of the catalogue | 180 | 43 MiB |",
    "| 0.1 % name a victim | 161 | 49 MiB |",
    "| 1 % name a victim | 144 | 50 MiB |",
    "| 25 % name a victim | 123 | 50 MiB |",
    "| all name a victim | 112 | 53 MiB |",
    "| 1 % name a cause | 128 | 55 MiB |",
    "| 25 % name a cause | 66 | 55 MiB |",
    "| 1 % are stack traces of 18 lines | 51 | 55 MiB |",
    "| all are stack traces of 18 lines | 15 | 65 MiB |",
    "",
    "What limits it: six translations of each chunk where nothing is found. Of words that only repeat what is known",
    "(victims, risks, warnings, access lines) the first 1,000 of a file are read, then the first and last of each MiB.",
    "A line that may name a cause, and a line inside a stack, is read whole (time, rank, patterns: 12 and 6 MB/s of",
    "such lines) until its class and rank have all the events that are kept; then only its shape, the text without its",
    "digits, is looked up.",
    "",
    "A directory as standard input (`megamoe diagnose - < DIR`) ends in Python's own fatal error: the interpreter",
    "stops before any of this code runs. Give the files of the directory by name.",
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
