from drive import *
from plan import plan, base_of
import re, collections
groups, unmapped, tsv = plan()
merged = collections.defaultdict(list)
for root, _, fs in os.walk("gitboot"):
    for f in sorted(fs):
        p = os.path.join(root, f)[8:]
        if "_split_" in p:
            merged[re.sub(r"_split_\w+\.py$", ".py", p)].append((0, p))
for t, sources in groups.items():
    if t == "gone": continue
    if t.startswith("split:"):
        rest = [part.partition(" -> ")[2].strip() for part in t[6:].split(";") if part.strip().startswith("rest")]
        for n, p in sources:
            merged[rest[0] if rest and rest[0] != "gone" else p].append((n, p))
        continue
    merged[t] += sources
moves = collections.defaultdict(list)
for t, sources in sorted(merged.items()):
    b = base_of(t, sources)
    if b != t: moves[(os.path.dirname(b), os.path.dirname(t))].append((b, t))
mod = lambda p: "gitboot." + p[:-3].replace("/", ".")
def moving(pairs):
    for b, t in pairs:
        if Path("gitboot/" + t).exists(): raise ValueError(f"{t} exists")
        tool.move(mod(b), mod(t))
for (a, z), pairs in sorted(moves.items()):
    pairs = [(b, t) for b, t in pairs if Path("gitboot/"+b).exists()]
    if not pairs: continue
    t0 = time.time()
    ok = step(f"Move {a or 'files at the top'} to {z or 'the top'}", lambda: moving(pairs))
    print(ok, a, z, len(pairs), round(time.time() - t0), flush=True)
    if not ok:
        for pair in pairs:
            print("   ", step(f"Move {pair[0]} to {pair[1]}", lambda: moving([pair])), pair, flush=True)
