import sys
import threading

from rocketmq.client import Message, Producer, PushConsumer

namesrv = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"

producer = Producer("example-python-producers")
producer.set_namesrv_addr(namesrv)
producer.start()
for i in range(10):
    message = Message("example-python")
    message.set_tags("greeting")
    message.set_body(f"hello {i}")
    print("sent", producer.send_sync(message), flush=True)
producer.shutdown()

outstanding = threading.Semaphore(0)


def on_message(message):
    print("received", message.body.decode(), flush=True)
    outstanding.release()


consumer = PushConsumer("example-python-consumers")
consumer.set_namesrv_addr(namesrv)
consumer.set_thread_count(1)
consumer.subscribe("example-python", on_message, "greeting")
consumer.start()
for _ in range(10):
    outstanding.acquire()
consumer.shutdown()
