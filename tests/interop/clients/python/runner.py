"""Scenario runner for the C++ client through the Python package `rocketmq`: one command per
process, one JSON line per event.

The contract that all runners share is in tests/interop/README.md. The package names neither the
broker of a message nor the queue of a send, so those fields are absent here.
"""

import hashlib
import json
import random
import string
import sys
import threading
import time

from rocketmq.client import Message, Producer, PushConsumer, SendStatus
from rocketmq.ffi import MessageModel

OPTIONS = dict(zip(sys.argv[2::2], sys.argv[3::2]))
PRINTING = threading.Lock()
ATTEMPTS_MAX = 30


def produce():
    producer = Producer(OPTIONS.get("--group", "producers"), timeout=10_000)
    producer.set_namesrv_addr(OPTIONS["--namesrv"])
    producer.start()
    for mode in OPTIONS.get("--modes", "sync").split(","):
        described = messages(mode)
        if mode == "sync":
            for message, fields in described:
                attempt(mode, [fields], lambda message=message: producer.send_sync(message))
        elif mode == "batch":
            step = int(OPTIONS.get("--batch", 10))
            for i in range(0, len(described), step):
                part = described[i : i + step]
                attempt(
                    mode,
                    [fields for _, fields in part],
                    lambda part=part: producer.send_batch([message for message, _ in part]),
                )
        elif mode == "async":
            send_async(producer, described)
        elif mode == "oneway":
            for message, fields in described:
                producer.send_oneway(message)
                emit("sent", mode=mode, **fields)
        else:
            raise ValueError(f"unknown mode {mode}")
    emit("done")
    producer.shutdown()


def consume():
    model = MessageModel.CLUSTERING
    if OPTIONS.get("--model") == "broadcasting":
        model = MessageModel.BROADCASTING
    consumer = PushConsumer(OPTIONS["--group"], message_model=model)
    consumer.set_namesrv_addr(OPTIONS["--namesrv"])
    consumer.set_instance_name(OPTIONS.get("--member", "DEFAULT"))
    consumer.set_thread_count(1)  # So that the order of the lines is the order of consumption.

    def on_message(message):
        emit(
            "received",
            queue=message.queue_id,
            offset=message.queue_offset,
            id=message.id,
            key=text(message.keys),
            tag=text(message.tags),
            **digested(message.body),
        )

    consumer.subscribe(OPTIONS["--topic"], on_message, OPTIONS.get("--tags", "*"))
    consumer.start()
    emit("started")
    sys.stdin.read()
    consumer.shutdown()
    emit("stopped")


def attempt(mode, described, send):
    """Sends, again if need be: while one thread of the client connects to a broker, sends of all
    others fail at once. A send that reached the broker all the same shows as stored twice.
    """
    for patience in range(ATTEMPTS_MAX, 0, -1):
        try:
            result = send()
        except Exception as error:  # The package has one exception for each way that a send fails.
            if patience == 1:
                failed(mode, described, error)
            time.sleep(0.1)
        else:
            accepted(mode, described, result)
            return


def send_async(producer, described):
    outstanding = threading.Semaphore(0)

    def finish(report, fields):
        def on_end(outcome):
            report("async", [fields], outcome)
            outstanding.release()

        return on_end

    for message, fields in described:
        producer.send_async(message, finish(accepted, fields), finish(failed, fields))
    for _ in described:
        outstanding.acquire()


def accepted(mode, described, result):
    status = "SEND_OK" if result.status == SendStatus.OK else result.status.name
    for i, fields in enumerate(described):
        emit("sent", mode=mode, status=status, offset=result.offset + i, **fields)


def failed(mode, described, error):
    for fields in described:
        emit("failed", mode=mode, key=fields["key"], code=-1, error=str(error))


def messages(mode):
    """Messages and what the driver has to know about each."""
    tags = OPTIONS.get("--tags", "A").split(",")
    every = int(OPTIONS.get("--large-every", 0))
    made = []
    for i in range(int(OPTIONS.get("--count", 10))):
        large = every > 0 and i % every == 0
        body = "".join(random.choices(string.ascii_letters, k=6000 if large else int(OPTIONS.get("--body", 100))))
        key = f"{OPTIONS.get('--prefix', 'm')}-{mode}-{i:07d}"
        message = Message(OPTIONS["--topic"])
        message.set_keys(key)
        message.set_tags(tags[i % len(tags)])
        message.set_body(body)
        made.append((message, {"key": key, "tag": tags[i % len(tags)], **digested(body.encode())}))
    return made


def digested(body):
    return {"length": len(body), "digest": hashlib.md5(body).hexdigest()}


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def emit(event, **fields):
    with PRINTING:
        print(json.dumps({"event": event, **fields}), flush=True)


{"produce": produce, "consume": consume}[sys.argv[1]]()
