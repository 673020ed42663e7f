// A web server that answers /N with "hello N " 2000 times, deflated by a thread of libuv's. Argument: its port.
const http = require("http");
const zlib = require("zlib");

http.createServer((request, response) => {
    const text = `hello ${request.url.slice(1)} `.repeat(2000);
    zlib.deflate(text, (error, packed) => {
        response.writeHead(error ? 500 : 200, { "Content-Length": packed.length });
        response.end(packed);
    });
}).listen(Number(process.argv[2]), "127.0.0.1");
