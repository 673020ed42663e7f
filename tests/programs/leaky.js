// Serves requests. Each opens a session, which is kept for ever; what else it allocates is dropped.

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
for (let request = 0; request < Number(process.argv[2]); request++) {
  sessions.push(Reflect.apply(openSession, null, [request]));
  served += Reflect.apply(serveRequest, null, [request]);
}
console.log(served, sessions.length);
