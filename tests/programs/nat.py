"""A router that translates addresses (NAT), between nodes and a driver: `nat.py DRIVERS_PORT PORT_FILE`.

Each node behind it gets a port of its own. On SIGUSR1 it forgets all of them, as a router does that was started again:
from then on each node has another port. Used by the end-to-end tests.
"""

import os
import selectors
import signal
import socket
import sys

HERE = "127.0.0.1"


class Router:
    def __init__(self, driver):
        self.driver = (HERE, driver)
        self.selector = selectors.DefaultSelector()
        self.inside = self.open(None)
        self.outside = {}

    def open(self, node):
        """A port: the inner one, or that of a node."""
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.bind((HERE, 0))
        opened.setblocking(False)
        self.selector.register(opened, selectors.EVENT_READ, node)
        return opened

    def forget(self, *_):
        for node, old in self.outside.items():
            self.selector.unregister(old)
            old.close()
            self.outside[node] = self.open(node)

    def carry(self, key):
        try:
            datagram, sender = key.fileobj.recvfrom(65536)
            if key.data is not None:
                self.inside.sendto(datagram, key.data)
                return
            if sender not in self.outside:
                self.outside[sender] = self.open(sender)
            self.outside[sender].sendto(datagram, self.driver)
        except (OSError, ValueError):
            # Refused, or the port was forgotten meanwhile: the datagram is lost, as datagrams may be.
            pass


router = Router(int(sys.argv[1]))
signal.signal(signal.SIGUSR1, router.forget)
with open(sys.argv[2] + ".new", "w") as file:
    file.write(str(router.inside.getsockname()[1]))
os.rename(sys.argv[2] + ".new", sys.argv[2])
while True:
    for key, _ in router.selector.select():
        router.carry(key)
