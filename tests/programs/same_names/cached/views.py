from collections import deque

blocks = deque(maxlen=2_000)


def handle(number):
    blocks.append(bytearray(1_000 + number % 2))
