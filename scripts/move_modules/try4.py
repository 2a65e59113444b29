from drive import *
from plan import plan, base_of
import re, collections, json
# Current location of every module of the map: the base of each target is at its target; others are where they were.
groups, unmapped, tsv = plan()
tsv_rev = collections.defaultdict(list)
cur = sorted(os.path.join(r, f)[8:] for r, _, fs in os.walk("gitboot") for f in fs if f.endswith(".py"))
targets = set()
merged = collections.defaultdict(list)
for p in cur:
    if p.endswith(("__init__.py", "__main__.py")): continue
    if "_split_" in p:
        merged[re.sub(r"_split_\w+\.py$", ".py", p)].append(p); continue
    t = tsv.get(p)
    if t is None or t == "gone": continue
    if t.startswith("split:"):
        rest = [part.partition(" -> ")[2].strip() for part in t[6:].split(";") if part.strip().startswith("rest")]
        t = rest[0] if rest and rest[0] != "gone" else p
    if t != p: merged[t].append(p)
mod = lambda p: "gitboot." + p[:-3].replace("/", ".")
done = failed = 0
for t, sources in sorted(merged.items()):
    if not Path("gitboot/" + t).exists():
        print("NO TARGET", t, sources, flush=True); continue
    sources.sort(key=lambda p: (p.count("/"), p))
    left = list(sources)
    for round_ in range(2):  # a merge may succeed after another one
        again = []
        for p in left:
            ok = step(f"Merge {p} into {t}", lambda: tool.merge(mod(p), mod(t)))
            if ok: done += 1
            else: again.append(p)
        left = again
        if not left: break
    failed += len(left)
    print(t, "done", done, "failed", failed, left, flush=True)
