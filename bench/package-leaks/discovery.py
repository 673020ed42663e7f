"""WSDiscovery 2.0.0 does not end the threads of a discovery that was stopped (fixed in 2.1.0)."""

import os
import sys
import time

from wsdiscovery.discovery import ThreadedWSDiscovery

answers = {}
end = time.monotonic() + float(sys.argv[1])
number = 0
while time.monotonic() < end:
    discovery = ThreadedWSDiscovery()
    discovery.start()
    time.sleep(0.03)
    discovery.stop()
    answers[number % 50] = "x" * 1000 + str(number)
    number += 1
    time.sleep(0.02)
os._exit(0)
