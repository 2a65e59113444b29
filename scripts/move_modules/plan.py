import collections, os
def plan():
    tsv = {}
    for f in ("modules.tsv", "extra.tsv", "fix.tsv"):
        if not os.path.exists(f): continue
        for line in open(f):
            p = line.rstrip("\n").split("\t")
            if p[0] and p[0] != "today": tsv[p[0]] = p[1]
    groups = collections.defaultdict(list); unmapped = []
    for root, _, fs in os.walk("gitboot"):
        for f in fs:
            if not f.endswith(".py"): continue
            p = os.path.join(root, f)[8:]
            if p.endswith("__init__.py") or p.endswith("__main__.py"): continue
            t = tsv.get(p)
            if t is None: unmapped.append(p); continue
            groups[t].append((sum(1 for _ in open("gitboot/" + p)), p))
    return groups, unmapped, tsv
def base_of(t, sources):
    same = [p for n, p in sources if p == t]
    if same: return same[0]
    name = [p for n, p in sorted(sources, reverse=True) if os.path.basename(p) == os.path.basename(t)]
    return name[0] if name else max(sources)[1]
