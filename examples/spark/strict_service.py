"""A service to try service_limits.py on: it refuses (429) above five calls at a time, and above fifty in any second.

Usage: strict_service.py [PORT]

It prints its URL, and answers /?place=X after 60 ms with X in capitals, whether or not the caller is still there.
/counts answers with what it has seen, as JSON.
"""

import asyncio
import collections
import json
import sys
import time
import urllib.parse

AT_ONCE, PER_SECOND, ANSWER_S = 5, 50, 0.06
port = int(sys.argv[1]) if len(sys.argv) > 1 else 0

started = collections.deque(maxlen=PER_SECOND)
counts = {"busy": 0, "accepted": 0, "refused": 0, "busiest": 0, "first_at": None, "last_at": None}


async def answer(place):
    """Work on a call: status and text."""
    now = time.monotonic()
    if counts["busy"] >= AT_ONCE or (len(started) == PER_SECOND and now - started[0] < 1):
        counts["refused"] += 1
        return "429 Too Many Requests", ""
    started.append(now)
    counts["busy"] += 1
    counts.update(
        accepted=counts["accepted"] + 1,
        busiest=max(counts["busiest"], counts["busy"]),
        first_at=counts["first_at"] or now,
        last_at=now,
    )
    try:
        await asyncio.sleep(ANSWER_S)
    finally:
        counts["busy"] -= 1
    return "200 OK", place.upper()


async def serve(reader, writer):
    """Answer the calls of a connection, one after the other."""
    while line := (await reader.readline()).decode():
        while (await reader.readline()).strip():
            pass
        url = urllib.parse.urlsplit(line.split()[1])
        if url.path == "/counts":
            status, text = "200 OK", json.dumps(counts)
        else:
            status, text = await answer(urllib.parse.parse_qs(url.query)["place"][0])
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(text.encode())}\r\n\r\n{text}".encode())
    writer.close()


async def main():
    """Serve until killed."""
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", flush=True)
    await server.serve_forever()


asyncio.run(main())
