"""A web server whose threads answer /N with what `answer(N)` computes.

usage: page.py PORT
"""

import http.server
import json
import sys


def answer(number):
    return json.dumps([{"number": number + at, "text": "x" * (at % 50)} for at in range(300)])


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body in one piece: otherwise each answer waits for an acknowledgement.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def do_GET(self):
        body = answer(int(self.path.strip("/"))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
