// Text and collections in JavaScript: words counted, sorted, joined and split. No random, no clock.
const rounds = Number(process.argv[2]);
const counts = new Map();
let total = 0;
for (let turn = 0; turn < rounds; turn++) {
  const words = Array.from({ length: 4000 }, (_, i) => `word${(i * 7919 + turn) % 1009}`);
  for (const word of words) counts.set(word, (counts.get(word) ?? 0) + 1);
  const pairs = words.slice(0, 300).map((key, i) => ({ key, value: words[i + 300], text: (key + words[i]).repeat(12) }));
  const text = JSON.stringify({ turn, words: words.slice(0, 800), pairs });
  total += text.length + JSON.parse(text).pairs.length + [...new Set(words)].sort().length + words.join(" ").split("1").length;
}
console.log(counts.size, total);
