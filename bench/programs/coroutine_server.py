"""One page for several servers: /N answers with what `answer(N)` computes, by way of a stack that is N % 40 deep.

usage: coroutine_server.py gevent|eventlet PORT          gunicorn coroutine_server:wsgi, uvicorn coroutine_server:asgi,
       celery -A coroutine_server worker, with BROKER    coroutine_server.py ask N...: asks celery's worker
"""

import json
import os
import sys


def texts(number):
    return [{"number": at, "text": str(number) * (at % 20)} for at in range(60)]


def nested(depth, number):
    return texts(number) if depth == 0 else nested(depth - 1, number)


def answer(number):
    return json.dumps(nested(number % 40, number))


def wsgi(environment, start_response):
    number = int(environment["PATH_INFO"].strip("/"))
    pause = sys.modules.get("gevent") or sys.modules.get("eventlet")
    if pause is not None:
        pause.sleep(0)
    body = answer(number).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body[:100], body[100:]]


async def asgi(scope, receive, send):
    import asyncio

    if scope["type"] != "http":
        return
    number = int(scope["path"].strip("/"))
    await asyncio.sleep(0)
    # Some of them are given up in the middle of their work.
    given_up = asyncio.ensure_future(asyncio.sleep(60))
    await asyncio.sleep(0)
    given_up.cancel()
    body = answer(number).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(body)).encode())]})
    await send({"type": "http.response.body", "body": body})


def serve_gevent(port):
    from gevent import monkey

    monkey.patch_all()
    import gevent
    from gevent.pywsgi import WSGIServer

    def churn():
        while True:
            some = [gevent.spawn(nested, number, number) for number in range(20)]
            sleepers = [gevent.spawn(gevent.sleep, 60) for _ in range(20)]
            gevent.sleep(0.001)
            gevent.killall(sleepers)
            gevent.joinall(some)
            gevent.sleep(0.02)

    gevent.spawn(churn)
    WSGIServer(("127.0.0.1", port), wsgi, log=None).serve_forever()


def serve_eventlet(port):
    import eventlet
    from eventlet import wsgi as server

    def churn():
        while True:
            sleepers = [eventlet.spawn(eventlet.sleep, 60) for _ in range(20)]
            eventlet.sleep(0.02)
            for one in sleepers:
                one.kill()

    eventlet.spawn(churn)
    server.server(eventlet.listen(("127.0.0.1", port)), wsgi, log_output=False)


if "BROKER" in os.environ:
    import celery

    app = celery.Celery("coroutine_server", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
    app.conf.worker_hijack_root_logger = False
    app.conf.broker_connection_retry_on_startup = True
    ask = app.task(name="ask")(answer)


def main():
    kind = sys.argv[1]
    if kind != "ask":
        {"gevent": serve_gevent, "eventlet": serve_eventlet}[kind](int(sys.argv[2]))
        return
    # Lines of standard input are numbers of first and last; each is answered with how many of them came back right.
    for line in sys.stdin:
        first, last = map(int, line.split())
        asked = [(number, ask.delay(number)) for number in range(first, last)]
        # Long, on a machine that others keep busy.
        right = sum(result.get(timeout=500) == answer(number) for number, result in asked)
        for _, result in asked:
            result.forget()
        print(right, flush=True)


if __name__ == "__main__":
    main()
