"""Celery, told what to do by a plan as JSON: producers in threads of this process, a worker of Celery's own beside it.

The last line on stdout is what came of it. Celery has no call that enqueues many: a message is one task, and a plan with
several in one sends them one after the other.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time

from celery import Celery

HERE = os.path.abspath(__file__)
PORT = os.environ.get("BENCH_PORT", "6379")
app = Celery("celery_bench", broker=f"redis://127.0.0.1:{PORT}/0")
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=int(os.environ.get("BENCH_PREFETCH", "32")),
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 3600},
)
socket_out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


@app.task(name="bench")
def bench(sent, filler):
    # Beside the broker: what is measured must not be written to its log as well.
    took = repr(time.time() - sent).encode()
    socket_out.sendto(took, ("127.0.0.1", int(os.environ["BENCH_DONE"])))


class Done(threading.Thread):
    """Hears from the worker processes how long each task took to reach them."""

    def __init__(self):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.times = []
        self.start()

    def run(self):
        while True:
            self.times.append(float(self.socket.recv(64)))


def quantiles(times):
    if not times:
        return None
    times = sorted(times)

    def at(part):
        return times[min(len(times) - 1, int(len(times) * part))] * 1000

    return {
        "count": len(times), "min": times[0] * 1000, "mean": sum(times) / len(times) * 1000, "p50": at(0.5),
        "p90": at(0.9), "p99": at(0.99), "p99_9": at(0.999), "max": times[-1] * 1000,
    }


def main():
    plan = json.loads(sys.argv[1])
    port, outstanding, batch = plan["port"], plan["outstanding"], plan["batch"]
    env = dict(os.environ, BENCH_PORT=str(port), BENCH_PREFETCH=str(max(1, outstanding * batch // 2)))
    env["PYTHONPATH"] = os.path.dirname(HERE)
    app.conf.broker_url = f"redis://127.0.0.1:{port}/0"
    app.conf.broker_pool_limit = outstanding
    done = Done()
    env["BENCH_DONE"] = str(done.port)
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "celery_bench", "worker", "--concurrency", "2", "--loglevel", "ERROR",
         "--without-gossip", "--without-mingle", "--without-heartbeat"],
        env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        # It is there when it has done a task.
        bench.apply_async((time.time(), ""))
        patience = time.time() + 60
        while not done.times:
            if time.time() > patience:
                raise SystemExit("the worker does not come up")
            time.sleep(0.05)
        done.times.clear()
        print(json.dumps(measure(plan, done)))
    finally:
        worker.terminate()
        worker.wait()


def measure(plan, done):
    filler = "x" * max(0, plan["payload_bytes"] - 30)
    batch, rate = plan["batch"], plan["rate"]
    start = time.time()
    end = start + plan["seconds"]
    lock = threading.Lock()
    state = {"begun": 0, "enqueued": 0, "last": start}
    enqueue = []

    def side():
        while True:
            with lock:
                begun = state["begun"]
                due = start + begun / rate if rate else time.time()
                if due >= end:
                    return
                state["begun"] += batch
            wait = due - time.time()
            # What fell due while the timer slept counts from when it woke; what was held up, from when it was due.
            since = due
            if wait > 0:
                time.sleep(wait)
                since = time.time()
            for _ in range(batch):
                bench.apply_async((since, filler))
            now = time.time()
            with lock:
                state["enqueued"] += batch
                state["last"] = max(state["last"], now)
                enqueue.extend([now - since] * batch)

    sides = [threading.Thread(target=side) for _ in range(plan["outstanding"])]
    for thread in sides:
        thread.start()
    for thread in sides:
        thread.join()
    count, changed, last = -1, time.time(), start
    while count < state["enqueued"] and time.time() - changed < 20:
        if len(done.times) != count:
            count, changed, last = len(done.times), time.time(), time.time()
        time.sleep(0.01)
    delivery = list(done.times)
    enqueued, acked = state["enqueued"], len(delivery)
    return {
        "enqueued": enqueued, "received": acked, "acked": acked, "unfinished": max(0, enqueued - acked),
        "seconds": last - start,
        "enqueued_per_s": enqueued / max(0.001, state["last"] - start),
        "acked_per_s": acked / max(0.001, last - start),
        "latency_ms": {"enqueue": quantiles(enqueue), "delivery": quantiles(delivery), "ack": None},
    }


if __name__ == "__main__":
    main()
