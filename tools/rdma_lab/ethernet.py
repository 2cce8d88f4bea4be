"""The machines' Ethernet: a hub over unix datagram sockets that can lose and delay frames, and cut off or cap machines and single NICs.

QEMU knows such sockets as `-netdev dgram`; unlike multicast or TAP they need neither privileges nor a free address.
"""

import collections
import errno
import heapq
import itertools
import random
import selectors
import socket
import threading
import time

MOST_WAITING = 4096  # frames a machine
ETHERNET_HEADER = 14  # bytes of a frame that no MTU counts


class Hub(threading.Thread):
    """One broadcast domain, of the machines' NICs of one number. Machine i sends to FOLDER/NAME-h<i> and hears at FOLDER/NAME-s<i>."""

    def __init__(self, folder, name, nic, machines, weather):
        super().__init__(daemon=True)
        self.path = f"{folder}/{name}"
        self.nic = nic
        self.weather = weather
        self.ending = False
        self.frames = 0
        self.lost = 0  # by the weather: loss, cuts and size
        self.undelivered = 0  # to machines that are not up yet, or gone, or take nothing
        # Frames for machines whose socket is full: a switch with buffers and flow control. Dropped here, a third of a busy RDMA
        # stream was lost, each time for the adapter's whole retransmission timeout.
        self.waiting = [collections.deque() for _ in range(machines)]
        self.taken = [0.0] * machines  # when a machine last took a frame, or its first began to wait
        self.longest_wait = 0.0  # seconds that a machine took nothing while frames waited
        self.delayed = []  # heap of (when, number, port, machine, frame)
        self.number = itertools.count()
        self.free_out = [0.0] * machines  # when a machine's NIC has sent what it has, as far as it is capped
        self.free_in = [0.0] * machines  # and has heard it
        self.selector = selectors.DefaultSelector()
        self.machines = machines
        for machine in range(machines):
            port = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            port.bind(self.hub_side(machine))
            port.setblocking(False)
            self.selector.register(port, selectors.EVENT_READ, machine)

    def hub_side(self, machine):
        return f"{self.path}-h{machine}"

    def machine_side(self, machine):
        return f"{self.path}-s{machine}"

    def run(self):
        while not self.ending:
            wait = 0.05
            if self.delayed:
                wait = max(0.0, min(wait, self.delayed[0][0] - time.monotonic()))
            if any(self.waiting):
                wait = min(wait, 0.0005)
            for machine, queue in enumerate(self.waiting):
                while queue and self._send(queue[0][0], machine, queue[0][1]):
                    queue.popleft()
                    self.taken[machine] = time.monotonic()
                if queue:
                    self.longest_wait = max(self.longest_wait, time.monotonic() - self.taken[machine])
            for key, _ in self.selector.select(wait):
                for _ in range(64):  # a burst, before others get their turn
                    try:
                        frame = key.fileobj.recv(65600)
                    except BlockingIOError:
                        break
                    self._forward(key.fileobj, key.data, frame)
            while self.delayed and self.delayed[0][0] <= time.monotonic():
                _, _, port, machine, frame = heapq.heappop(self.delayed)
                self._deliver(port, machine, frame)

    def _forward(self, port, sender, frame):
        weather = self.weather
        for machine in range(self.machines):
            if machine == sender:
                continue
            self.frames += 1
            if weather.is_cut(sender, self.nic) or weather.is_cut(machine, self.nic) or len(frame) > weather.longest + ETHERNET_HEADER or (weather.loss > 0 and random.random() < weather.loss):
                self.lost += 1
                continue
            now = time.monotonic()
            when = self._pass(self.free_in, machine, len(frame), self._pass(self.free_out, sender, len(frame), now)) + weather.delay
            if when > now or self.delayed:
                heapq.heappush(self.delayed, (when, next(self.number), port, machine, frame))
            else:
                self._deliver(port, machine, frame)

    def _pass(self, free, machine, length, when):
        """When a frame that is here at a time has passed a machine's NIC, which may be capped."""
        rate = self.weather.cap(machine, self.nic)
        if rate is None:
            return when
        free[machine] = max(free[machine], when) + length / rate
        return free[machine]

    def _deliver(self, port, machine, frame):
        queue = self.waiting[machine]
        if queue or not self._send(port, machine, frame):
            if not queue:
                self.taken[machine] = time.monotonic()
            if len(queue) < MOST_WAITING:
                queue.append((port, frame))
            else:
                self.undelivered += 1

    def _send(self, port, machine, frame):
        """False if the machine's socket is full; a frame for a machine that is not up, or gone, is dropped."""
        try:
            port.sendto(frame, self.machine_side(machine))
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                return False
            self.undelivered += 1
        return True


class Weather:
    """What the network does to frames now."""

    def __init__(self, loss=0.0, delay=0.0):
        self.loss = loss  # probability
        self.delay = delay  # seconds
        self.cut = set()  # (machine, NIC) that neither hear nor are heard; NIC None: all of it
        self.caps = {}  # bytes a second each way, by (machine, NIC) likewise: of each of its NICs
        self.longest = 65536  # bytes of a frame that passes, without its header

    def is_cut(self, machine, nic):
        return bool(self.cut) and ((machine, nic) in self.cut or (machine, None) in self.cut)

    def cap(self, machine, nic):
        """Bytes a second; None: no cap."""
        return self.caps.get((machine, nic), self.caps.get((machine, None))) if self.caps else None
