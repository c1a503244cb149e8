# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Writes every other sector of a disk, many at once, until the server is gone; then prints what was acknowledged and what was sent."""

import json
import nbd
import sys

uri, parity, state = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
SECTORS, DEPTH = 256, 16
sent = {int(k): v for k, v in state.items()}
acked = dict(sent)


def sector(number, generation):
    return (b"%08d %08d %d;" % (number, generation, parity)).ljust(32, b".") * 16


handle = nbd.NBD()
handle.connect_uri(uri)
out, total = {}, 0
numbers = [n for n in range(SECTORS) if n % 2 == parity]
try:
    at = 0
    while True:
        while len(out) < DEPTH:
            number = numbers[at % len(numbers)]
            at += 1
            if number in out.values():
                break
            sent[number] = sent.get(number, 0) + 1
            data = nbd.Buffer.from_bytearray(bytearray(sector(number, sent[number])))
            out[handle.aio_pwrite(data, number * 512)] = number
        handle.poll(-1)
        for cookie in [c for c in out if handle.aio_command_completed(c)]:
            number = out.pop(cookie)
            acked[number] = sent[number]
            total += 1
            if total == 400:
                print("under way", file=sys.stderr, flush=True)
except nbd.Error:
    print(json.dumps([acked, sent]))
