"""Mutations of reports and live pages: bytes flipped, cut and put in; types swapped, keys gone, numbers of any size, deep nesting.

Every choice comes from the given random.Random, so that a seed number gives the same inputs on every machine.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random

# A long text is a factory: kept as text it would be copied into every input that it does not reach.
_VALUES = (
    lambda: None, lambda: True, lambda: False, lambda: 0, lambda: -1, lambda: 1, lambda: 2**63, lambda: 2**64 - 1, lambda: -2**63,
    lambda: 2**64, lambda: 10**30, lambda: 10**400, lambda: -10**4200, lambda: 0.5, lambda: -0.0, lambda: 1e308, lambda: 1e300, lambda: -1e-300,
    lambda: float("nan"), lambda: float("inf"), lambda: -float("inf"), lambda: "", lambda: "x" * 70, lambda: "\x1b]0;title\x07\x1b[2J", lambda: "two\nlines\r",
    lambda: "\ud800", lambda: "\u202eevil\u2028", lambda: "\0", lambda: "日本 é", lambda: "{0} %s %d", lambda: "1", lambda: "NaN", lambda: [], lambda: {},
    lambda: [[]], lambda: {"": {}}, lambda: [None] * 30, lambda: [0] * 7, lambda: {"current": -1, "peak": 10**25}, lambda: {"key\n": 1})
_LARGE_VALUES = (lambda: "long " * 60_000, lambda: "x" * 1_000_000, lambda: ["w"] * 20_000, lambda: [{}] * 20_000, lambda: {"k" * 100_000: 1},
                 lambda: dict.fromkeys(map(str, range(20_000)), 1), lambda: [[1, 2, 3, "live", 0, 0, 0]] * 20_000)
_ENCODINGS = ("utf-16", "utf-8-sig", "utf-32", "latin-1", "cp037", "utf-7")
_BYTES = (b"\0", b"\xff", b"\x80", b"\xed\xa0\x80", b"\n", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"-", b"9", b"e", b".", b"1e999", b"NaN",
          b"-Infinity", b"\\ud800", b"\\u0000", b"/**/", b"\xef\xbb\xbf")


def _nodes(root: object) -> list[tuple[object, object]]:
    """(container, key) of every value below `root`."""
    found, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            found.append((node, key))
            if isinstance(value, (dict, list)):
                waiting.append(value)
    return found


def _change_node(root: object, numbers: random.Random) -> None:
    nodes = _nodes(root)
    if not nodes:
        return
    # Half of the time near the top: most values lie in long tables, where one is as good as another.
    node, key = numbers.choice(nodes if numbers.random() < 0.5 else nodes[:60])
    choice = numbers.randrange(9)
    if choice == 0:
        del node[key]
    elif choice == 1 and isinstance(node, dict):
        node[numbers.choice((key + "x", key.upper(), "", "schema", "a/b~c\n", "é" * 40))] = node.pop(key)
    elif choice == 2 and isinstance(node[key], list) and node[key]:
        node[key] = node[key] * numbers.choice((2, 9, 40))
    elif choice == 3:
        other, other_key = numbers.choice(nodes)
        node[key] = copy.deepcopy(other[other_key])
    elif choice == 4 and isinstance(node[key], int) and abs(node[key]) < 2**70:
        node[key] = numbers.choice((node[key] + 1, -node[key], node[key] * 2**40, float(node[key]), str(node[key])))
    elif choice == 5 and numbers.random() < 0.04:
        node[key] = numbers.choice(_LARGE_VALUES)()
    else:
        node[key] = numbers.choice(_VALUES)()


def _deep(numbers: random.Random) -> bytes:
    depth = numbers.choice((50, 900, 5000, 100_000, *(numbers.randrange(930, 1001) for _ in range(4))))  # Python stops near 1000
    begin, end = numbers.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'{"devices":[', b"]}")))
    return begin * depth + b"0" + end * depth


def _nest(text: bytes, numbers: random.Random) -> bytes:
    """A deep value in the place of one that follows a colon."""
    places = [at for at, byte in enumerate(text) if byte == ord(":") and text[at - 1:at] == b'"']
    if not places:
        return _deep(numbers)
    at = numbers.choice(places) + 1
    end = min((found for found in (text.find(mark, at) for mark in (b",", b"}")) if found >= 0), default=at)
    return text[:at] + _deep(numbers) + text[end:]


def damage(data: bytes, other: bytes, numbers: random.Random) -> bytes:
    """A small change of bytes that knows nothing of what they mean."""
    at = numbers.randrange(len(data) + 1)
    choice = numbers.randrange(7)
    if choice == 0 and data:
        at = min(at, len(data) - 1)
        return data[:at] + bytes([data[at] ^ 1 << numbers.randrange(8)]) + data[at + 1:]
    if choice == 1:
        return data[:at]
    if choice == 2:
        return data[:at] + data[at + numbers.choice((1, 2, 4, 40)):]
    if choice == 3:
        begin = numbers.randrange(len(other) + 1)
        return data[:at] + other[begin:begin + numbers.randrange(200)] + data[at:]
    if choice == 4:
        return data[:at] + data[at:at + numbers.randrange(400)] + data[at:]
    return data[:at] + numbers.choice(_BYTES) + data[at + numbers.randrange(3):]


def mutate_report(data: bytes, other: bytes, numbers: random.Random) -> bytes:
    if numbers.random() < 0.75:
        try:
            report = json.loads(data)
        except (ValueError, RecursionError):
            report = None
        if isinstance(report, (dict, list)):
            with contextlib.suppress(RecursionError):  # a value that an earlier mutation made too deep to copy
                for _ in range(numbers.choice((1, 1, 2, 5))):
                    _change_node(report, numbers)
                data = json.dumps(report, ensure_ascii=numbers.random() < 0.9, separators=(",", ":")).encode("utf-8", "surrogatepass")
            if numbers.random() < 0.9:
                return data
    choice = numbers.randrange(20)
    if choice == 0:
        return data.decode("utf-8", "replace").encode(numbers.choice(_ENCODINGS), "replace")
    if choice == 1:
        return _deep(numbers) if numbers.random() < 0.3 else _nest(data, numbers)
    for _ in range(numbers.choice((1, 1, 3))):
        data = damage(data, other, numbers)
    return data


def mutate_page(data: bytes, other: bytes, numbers: random.Random) -> bytes:
    """Mostly words: of the header, which place everything, and of the rest, whose numbers are believed."""
    if numbers.random() < 0.15:
        return damage(data, other, numbers)
    out = bytearray(data)
    for _ in range(numbers.choice((1, 1, 2, 6))):
        width = numbers.choice((4, 8))
        room = max(1, len(out) - width)
        at = numbers.randrange(min(room, 160) if numbers.random() < 0.4 else room) // 4 * 4
        old = int.from_bytes(out[at:at + width], "little")
        new = numbers.choice((0, 1, 8, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, old + 1, old - 1, old * 2, len(out), len(out) - 8, numbers.getrandbits(64)))
        out[at:at + width] = (new % 2**(8 * width)).to_bytes(width, "little")
    if numbers.random() < 0.25:
        out = bytearray(_change_facts(bytes(out), numbers))
    return bytes(out)


def _change_facts(data: bytes, numbers: random.Random) -> bytes:
    """The page with other process facts."""
    at, length = (int.from_bytes(data[place:place + 4], "little") for place in (64, 68))
    try:
        facts = json.loads(data[at:at + length])
        _change_node(facts, numbers)
    except (ValueError, RecursionError, AttributeError, TypeError):
        return data
    text = json.dumps(facts).encode()
    return _with_facts(data, _nest(text, numbers) if numbers.random() < 0.1 else text)


def _with_facts(data: bytes, text: bytes) -> bytes:
    """The facts stand behind the page's end, where the header then points."""
    return data[:64] + len(data).to_bytes(4, "little") + len(text).to_bytes(4, "little") + data[72:] + text


def page_attacks(data: bytes, deepest: range) -> list[bytes]:
    """Pages whose process facts are no JSON of a report's, or nested about as deeply as can be read; and each counter at its ends."""
    facts = b'{"process":{"command":%s},"report_path":"r.json","options":{}}'
    texts = [b"[" * depth + b"]" * depth for depth in deepest] + [b"NaN", b"-Infinity", b"1e999", b'"\\ud800"']
    found = [_with_facts(data, facts % text) for text in texts]
    devices, counters = (int.from_bytes(data[place:place + 4], "little") for place in (72, 84))
    for at in range(devices + counters, devices + counters + 24 * 8, 8):
        found += [data[:at] + word + data[at + 8:] for word in (bytes(8), b"\xff" * 8)]
    return found


def attacks(data: bytes, deepest: range) -> list[bytes]:
    """Reports that are made to cost more than they hold: long texts, long lists, many keys, the depth at which each reader gives up."""
    found = []

    def put(*path: object, value: object) -> None:
        report = json.loads(data)
        node = report
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value
        found.append(json.dumps(report).encode())

    for text in ("x" * 3_500_000, "a-" * 1_700_000):
        put("data_quality", "warnings", value=[text])
    put("ooms", 0, "suggestions", 0, value={"level": "fix", "message": "x" * 3_500_000})
    put("data_quality", "unpooled_apis_seen", value=["a"] * 60_000)
    put("process", "command", value=["a"] * 60_000)
    put("devices", 0, "blocks", value=[[1, 2]] * 60_000)
    put("leaks", value=[{"bytes": 1}] * 60_000)
    put("devices", value=json.loads(data)["devices"] * 200)
    for key in ("k" * 1_000_000, "k\n" * 300):
        put(key, value=1)
        put("devices", 0, "counters", "driver_calls", key, value="one")
        found.append(b'{"%s":1,"%s":2}' % (2 * (key.encode().replace(b"\n", b"\\n"),)))
    found.append(b"{" + b"".join(b'"%d":0,' % each for each in range(100_000)) + b'"99999":1}')
    for depth in deepest:
        found.append(data.replace(b'"event":', b'"event":' + b"[" * depth + b"]" * depth + b',"was":', 1))
    return found
