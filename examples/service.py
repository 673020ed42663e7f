# A small web service without the web: parses requests, renders pages, fills a cache that stops growing, and leaks a
# little in its audit log. Three threads, four seconds.
import json
import random
import threading

cache = {}
audit_log = []


def parse(number):
    text = json.dumps({"user": number, "items": [{"id": i, "name": "item %d" % i, "price": random.random()} for i in range(40)]})
    return json.loads(text)


def render(document):
    return "".join("<li>%s: %.2f</li>" % (item["name"], item["price"]) for item in document["items"])


def remember(number, page):
    if len(cache) < 3000:
        cache[number] = page


def audit(number):
    audit_log.append(bytearray(900))


def handle(number):
    page = render(parse(number))
    remember(number, page)
    audit(number)


def worker(first):
    for number in range(8000):
        handle(first + number)


threads = [threading.Thread(target=worker, args=(100000 * k,), name="worker-%d" % k) for k in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
