"""The compiler of TypeScript on the libraries of browsers, against V8's own profiler by the inspector, which `--heap-prof` is."""

import json
import shutil

from .opinion import CACHE, Missing, Opinion, profile, run, top_functions

COMPILER = CACHE / "node/node_modules/typescript/bin/tsc"
INTERVAL = 65536
# As `--heap-prof`, which tells only of what lives at the end; here of all.
PROFILER = """
const inspector = require('node:inspector'), fs = require('node:fs');
const session = new inspector.Session();
session.connect();
session.post('HeapProfiler.startSampling', {samplingInterval: %d, includeObjectsCollectedByMajorGC: true,
  includeObjectsCollectedByMinorGC: true});
process.on('exit', () => session.post('HeapProfiler.stopSampling', (_, {profile}) => {
  const sums = {};
  const add = node => {
    const name = node.callFrame.functionName;
    sums[name] = (sums[name] ?? 0) + node.selfSize;
    node.children.forEach(add);
  };
  add(profile.head);
  fs.writeFileSync('sums.json', JSON.stringify(sums));
}));
""" % INTERVAL


def opinions(place):
    if shutil.which("node") is None:
        raise Missing("node (Debian: nodejs)")
    if not COMPILER.exists():
        raise Missing("typescript (scripts/second-opinions --fetch)")
    (place / "empty.ts").write_text("export const empty: Map<string, Promise<number[]>> = new Map();\n")
    (place / "profiler.js").write_text(PROFILER)
    arguments = [str(COMPILER), "--noEmit", "--skipLibCheck", "false", "--lib", "esnext,dom", "empty.ts"]
    profile(["node", *arguments], place, str(INTERVAL))
    top = top_functions(place, "javascript")[0]
    run(["node", "-r", "./profiler.js", *arguments], place)
    theirs = json.loads((place / "sums.json").read_text())
    site = top["function"]
    # It draws by the same law at the same interval.
    yield Opinion("Node.js", "TypeScript's compiler", site, top["bytes"], top["error"], "inspector's HeapProfiler",
                  theirs.get(site, 0), top["error"])
