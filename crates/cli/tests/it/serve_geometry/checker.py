# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Checks the sectors that two writers wrote: each is whole, and no older than acknowledged. Prints what each holds."""

import json
import nbd
import sys

handle = nbd.NBD()
handle.connect_uri(sys.argv[1])
holds = []
for parity, text in enumerate(sys.argv[2:]):
    acked, sent = json.loads(text)
    found = {}
    for number in sent:
        data = bytes(handle.pread(512, int(number) * 512))
        generation = int(data[9:17]) if data[0] else 0
        whole = data == data[:32] * 16 and (generation == 0 or data[:8] == b"%08d" % int(number))
        least = acked.get(number, 0)
        assert whole and least <= generation <= sent[number], (number, data[:64], least, sent[number])
        found[number] = generation
    holds.append(found)
print(json.dumps(holds))
