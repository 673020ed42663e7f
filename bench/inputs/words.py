"""Text and JSON in CPython: words counted, documents built, written, parsed and changed. No random, no clock."""

import json
import sys

rounds = int(sys.argv[1])
counts = {}
total = 0
for turn in range(rounds):
    words = [f"word{(i * 7919 + turn) % 1009}" for i in range(4000)]
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    document = {
        "turn": turn,
        "words": words[:800],
        "pairs": [{"key": a, "value": b, "text": (a + b) * 12} for a, b in zip(words[:300], words[300:600])],
    }
    text = json.dumps(document, indent=1)
    total += len(text) + len(json.loads(text)["pairs"]) + len(sorted(set(words))) + len(" ".join(words).split("1"))
print(len(counts), total)
