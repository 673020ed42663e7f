// Serves requests. Each opens a session, which is kept for ever; what else it allocates is dropped. With --expose-gc it asks
// for a full collection after each eighth of the requests.

const sessions = [];

function openSession(request) {
  const session = new Array(40);
  session[0] = request;
  return session;
}

function serveRequest(request) {
  const answer = [];
  for (let i = 0; i < 20; i++) answer.push(new Array(30).fill(request));
  return answer.length;
}

function buildTable() {
  return Array.from({ length: 20000 }, (_, i) => [i, i]);
}

const table = buildTable();
let served = table.length;
const requests = Number(process.argv[2]);
for (let request = 0; request < requests; request++) {
  sessions.push(Reflect.apply(openSession, null, [request]));
  served += Reflect.apply(serveRequest, null, [request]);
  if (globalThis.gc && request % (requests / 8) === 0) gc();
}
console.log(served, sessions.length);
