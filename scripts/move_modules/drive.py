from __future__ import annotations
import sys, subprocess, collections, os, time
sys.path.insert(0, os.path.dirname(__file__))
import tool
from pathlib import Path
V = ".venv/bin/"

def sh(*a, check=True):
    return subprocess.run(a, check=check, capture_output=True, text=True)

def ruff():
    sh(V + "ruff", "check", "-q", "--fix", "--select", "I,F401,F811", "gitboot", "tests", "benchmarks", "scripts", check=False)
    sh(V + "ruff", "format", "-q", "gitboot", "tests", "benchmarks", "scripts", check=False)

CHECK = """
import importlib, os, sys
bad = []
for root, _, fs in os.walk('gitboot'):
    for f in sorted(fs):
        if f.endswith('.py') and f not in ('__main__.py',):
            m = os.path.join(root, f)[:-3].replace('/', '.').removesuffix('.__init__')
            try: importlib.import_module(m)
            except BaseException as e: bad.append(f'{m}: {type(e).__name__}: {e}')
print('\\n'.join(bad))
"""

def check():
    """Import everything; each package first in a process of its own is not needed here."""
    r = sh(V + "python", "-c", CHECK, check=False)
    f = sh(V + "ruff", "check", "-q", "--select", "F821,F811,E999", "--output-format", "concise", "gitboot", "tests", "benchmarks", check=False)
    return (r.stdout + r.stderr[-500:]).strip() + "\n" + f.stdout.strip()

def commit(message):
    sh("git", "add", "-A"); sh("git", "commit", "-qm", message)

def step(message, work):
    before = sh("git", "rev-parse", "HEAD").stdout.strip()
    try:
        work(); ruff(); found = check().strip()
    except Exception as e:
        found = f"{type(e).__name__}: {e}"
    if found:
        print("FAILED", message, "\n   ", found[:600].replace("\n", "\n    "), flush=True)
        sh("git", "reset", "-q", "--hard", before); sh("git", "clean", "-qfd", "gitboot", "tests", "benchmarks")
        return False
    commit(message); return True
