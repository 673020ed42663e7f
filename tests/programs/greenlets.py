"""Spawns, switches, kills and abandons coroutines; usage: greenlets.py greenlet|gevent|eventlet ROUNDS."""

import sys


def work(number):
    texts = [str(number * factor) for factor in range(number % 40)]
    return sum(len(text) for text in texts)


def nested(depth, at_the_end):
    return at_the_end() if depth == 0 else nested(depth - 1, at_the_end) + 1


def greenlets(rounds):
    from greenlet import GreenletExit, getcurrent, greenlet

    def run(number):
        total = 0
        try:
            while True:
                total += nested(number % 30, lambda: work(number))
                getcurrent().parent.switch(total)
        except GreenletExit:
            return -work(number)

    for turn in range(rounds):
        some = [greenlet(run) for _ in range(20)]
        for number, one in enumerate(some):
            for times in range(1, 4):
                depth, expected = number % 30, work(number)
                answer = one.switch(number) if times == 1 else one.switch()
                assert answer == times * (depth + expected), (answer, times, depth, expected)
        for number, one in enumerate(some[:10]):
            assert one.throw() == -work(number)
        del some, one  # the others end when nobody refers to them any more


def gevents(rounds):
    import gevent

    def serve(number):
        gevent.sleep(0)
        total = nested(number % 30, lambda: work(number))
        if number % 7 == 0:
            gevent.sleep(0.0001)
        return total

    for turn in range(rounds):
        some = [gevent.spawn(serve, number) for number in range(40)]
        gevent.sleep(0)
        for one in some[::5]:
            one.kill(block=False)
        gevent.joinall(some)
        for number, one in enumerate(some):
            if isinstance(one.value, int):
                assert one.value == number % 30 + work(number)
            else:
                assert number % 5 == 0


def eventlets(rounds):
    import eventlet

    def serve(number):
        eventlet.sleep(0)
        return nested(number % 30, lambda: work(number))

    for turn in range(rounds):
        pool = eventlet.GreenPool(20)
        for number, answer in enumerate(pool.imap(serve, range(40))):
            assert answer == number % 30 + work(number)
        some = [eventlet.spawn(serve, number) for number in range(10)]
        eventlet.sleep(0)
        for one in some:
            one.kill()


kinds = {"greenlet": greenlets, "gevent": gevents, "eventlet": eventlets}
kinds[sys.argv[1]](int(sys.argv[2]))
print("all answers were right")
