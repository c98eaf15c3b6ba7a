"""The catalogue as a page: `python -m megamoe.diagnose.page > scripts/docs/diagnose.md`."""

from __future__ import annotations

from megamoe.diagnose.catalogue import advice, rules


def page() -> str:
    """Markdown, byte-identical for the same catalogue."""
    by_rule = {r.id: r for r in rules()}
    out = ["# What `megamoe diagnose` can name", "",
           "Generated from `scripts/megamoe/diagnose/catalogue.toml` by `python -m megamoe.diagnose.page`. "
           "Do not edit.", ""]
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
