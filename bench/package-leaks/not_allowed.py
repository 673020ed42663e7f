"""aiohttp 3.10.10 keeps objects of every request with a method that is not allowed, if a middleware is in use (fixed in 3.10.11)."""

import asyncio
import sys
import time

from aiohttp import web

REQUEST = b"%s / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
BATCH = (REQUEST % b"GET" + REQUEST % b"POST") * 8
SECONDS, RATE = float(sys.argv[1]), 240


@web.middleware
async def middleware(request, handler):
    return await handler(request)


async def hello(request):
    return web.Response(text="hello")


async def load(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    start, requests = time.monotonic(), 0
    while time.monotonic() < start + SECONDS:
        await asyncio.sleep(max(0.0, start + requests / RATE - time.monotonic()))
        writer.write(BATCH)
        answers = b""
        while answers.count(b"HTTP/1.1 ") < 16 or not answers.endswith((b"hello", b"405: Method Not Allowed")):
            answers += await reader.read(1 << 16)
        requests += 16


async def main():
    app = web.Application(middlewares=[middleware])
    app.router.add_get("/", hello)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    await load(site._server.sockets[0].getsockname()[1])
    await runner.cleanup()


asyncio.run(main())
