"""A Milvus server in a network namespace of its own, reached through one socket that listens on 127.0.0.1.

`unshare --net --mount python milvus_relay.py FD FOLDER`: the server listens on every address it finds, and
finds none but the namespace's own. FD is a socket that listens outside of it; connections are relayed. It
ends, with the server, when its standard input does.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading

# milliseconds, so that tests need not wait for what nobody else asks of the server
SOON = {
    "proxy.timeTickInterval": 10,
    "queryCoord.checkInterval": 50,
    "queryCoord.distPullInterval": 50,
    "queryCoord.checkHandoffInterval": 200,
}
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(2**16):
            writer.write(chunk)
            await writer.drain()
    except ConnectionError:
        pass  # the other side is told by the end of the stream
    finally:
        writer.close()


async def relay(listening: socket.socket, port: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, server[1]), copy(server[0], writer))

    async with await asyncio.start_server(connected, sock=listening) as server:
        await server.serve_forever()


def main() -> None:
    listening = socket.socket(fileno=int(sys.argv[1]))
    bring_up_loopback()
    # the server makes /run/milvus, whoever else has made it: here it is one of its own
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    from milvus import MilvusServer

    server = MilvusServer()
    server.set_base_dir(sys.argv[2])
    for name, milliseconds in SOON.items():
        server.config.set(name, milliseconds)
    server.start()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        server.stop()
        os._exit(0)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    print("ready", flush=True)
    asyncio.run(relay(listening, server.listen_port))


if __name__ == "__main__":
    main()
