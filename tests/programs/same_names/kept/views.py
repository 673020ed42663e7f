blocks = []


def handle(number):
    blocks.append(bytearray(500 + number % 2))
