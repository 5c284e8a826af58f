"""A raw remoting client: the driver's own eyes on a broker.

It creates topics, sends to one queue, pulls what is stored, and asks for routes, without any of the
clients under test. JSON headers only, one request at a time, one connection for each instance.
"""

import hashlib
import json
import socket
import struct
import zlib
from dataclasses import dataclass

SEND_MESSAGE_V2 = 310
PULL_MESSAGE = 11
QUERY_CONSUMER_OFFSET = 14
CREATE_TOPIC = 17
MAX_OFFSET = 30
ROUTE_BY_TOPIC = 105

SUCCESS = 0
PULL_NOT_FOUND = 19
PULL_RETRY = 20
MESSAGE_ILLEGAL = 13
TOPIC_NOT_EXIST = 17

BODY_COMPRESSED = 0x1
SUBSCRIPTION_IN_PULL = 0x4


class Refused(Exception):
    """The server answered with a code other than success."""

    def __init__(self, code, remark):
        super().__init__(f"code {code}: {remark}")
        self.code = code


@dataclass(frozen=True)
class Record:
    """One stored message."""

    queue: int
    offset: int
    log_offset: int
    length: int
    body_length: int
    key: str
    tag: str
    digest: str
    properties: str


class Connection:
    """A connection to a broker or name server at `address` (`ip:port`)."""

    def __init__(self, address, timeout_s=10.0):
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opaque = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def request(self, code, fields, body=b""):
        """Sends one request; returns the header of the answer and its body."""
        self._opaque += 1
        header = {
            "code": code,
            "language": "JAVA",
            "version": 409,
            "opaque": self._opaque,
            "flag": 0,
            "extFields": {name: str(value) for name, value in fields.items()},
        }
        encoded = json.dumps(header, separators=(",", ":")).encode()
        total = 4 + len(encoded) + len(body)
        self._socket.sendall(struct.pack(">ii", total, len(encoded)) + encoded + body)
        while True:
            answer, answer_body = self._receive()
            if answer["flag"] & 1 and answer["opaque"] == self._opaque:
                return answer, answer_body

    def _receive(self):
        (total,) = struct.unpack(">i", self._exactly(4))
        frame = self._exactly(total)
        (header_length,) = struct.unpack_from(">i", frame)
        header_length &= 0xFFFFFF
        return json.loads(frame[4 : 4 + header_length]), frame[4 + header_length :]

    def _exactly(self, count):
        chunks = bytearray()
        while len(chunks) < count:
            chunk = self._socket.recv(min(count - len(chunks), 1 << 20))
            if not chunk:
                raise ConnectionError("the server closed the connection")
            chunks += chunk
        return bytes(chunks)

    def _expect(self, code, fields, body=b""):
        header, answer_body = self.request(code, fields, body)
        if header["code"] != SUCCESS:
            raise Refused(header["code"], header.get("remark"))
        return header.get("extFields") or {}, answer_body

    def create_topic(self, topic, queue_count):
        """Creates `topic` on this broker with the same count of read and write queues."""
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": queue_count,
            "writeQueueNums": queue_count,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
        }
        self._expect(CREATE_TOPIC, fields)

    def send(self, topic, queue, body, key, tag="A"):
        """Sends to one queue; returns the queue offset."""
        properties = f"KEYS\x01{key}\x02TAGS\x01{tag}\x02UNIQ_KEY\x01{key}\x02WAIT\x01true"
        fields = {
            "a": "driver",
            "b": topic,
            "c": "TBW102",
            "d": 4,
            "e": queue,
            "f": 0,
            "g": 1_700_000_000_000,
            "h": 0,
            "i": properties,
            "j": 0,
            "k": "false",
            "m": "false",
        }
        answer, _ = self._expect(SEND_MESSAGE_V2, fields, body)
        return int(answer["queueOffset"])

    def route(self, topic):
        """Returns `{broker name: (address, write queue count)}`."""
        _, body = self._expect(ROUTE_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"})
        route = json.loads(body)
        addresses = {data["brokerName"]: data["brokerAddrs"]["0"] for data in route["brokerDatas"]}
        return {
            data["brokerName"]: (addresses[data["brokerName"]], data["writeQueueNums"])
            for data in route["queueDatas"]
        }

    def max_offset(self, topic, queue):
        """The offset that the next message of the queue will get."""
        answer, _ = self._expect(MAX_OFFSET, {"topic": topic, "queueId": queue})
        return int(answer["offset"])

    def committed(self, group, topic, queue):
        """The offset that a group has committed for a queue; 0 if it has committed none."""
        fields = {"consumerGroup": group, "topic": topic, "queueId": queue}
        header, _ = self.request(QUERY_CONSUMER_OFFSET, fields)
        return int(header["extFields"]["offset"]) if header["code"] == SUCCESS else 0

    def pull_all(self, topic, queue):
        """Every message of a queue, from offset 0 to its end."""
        records, offset = [], 0
        while True:
            fields = {
                "consumerGroup": "driver",
                "topic": topic,
                "queueId": queue,
                "queueOffset": offset,
                "maxMsgNums": 32,
                "sysFlag": SUBSCRIPTION_IN_PULL,
                "commitOffset": 0,
                "suspendTimeoutMillis": 0,
                "subscription": "*",
                "subVersion": 0,
                "expressionType": "TAG",
            }
            header, body = self.request(PULL_MESSAGE, fields)
            if header["code"] == PULL_NOT_FOUND:
                return records
            if header["code"] not in (SUCCESS, PULL_RETRY):
                raise Refused(header["code"], header.get("remark"))
            records += parse_records(body)
            offset = int(header["extFields"]["nextBeginOffset"])


def parse_records(body):
    """The messages of a pull answer."""
    records, position = [], 0
    while position < len(body):
        record = _parse_record(body, position)
        records.append(record)
        position += record.length
    return records


def _parse_record(data, at):
    # Fixed part: length, magic, crc, queue, flag, queue offset, log offset, flags, born time.
    length, _, crc, queue, _, offset, log_offset, flags, _ = struct.unpack_from(">iIIiiqqiq", data, at)
    # Then born host (8), store time (8), store host (8), reconsume times (4), prepared offset (8).
    position = at + 48 + 36
    (body_length,) = struct.unpack_from(">i", data, position)
    position += 4
    body = data[position : position + body_length]
    position += body_length
    topic_length = data[position]
    position += 1 + topic_length
    (properties_length,) = struct.unpack_from(">h", data, position)
    properties_text = data[position + 2 : position + 2 + properties_length].decode()
    properties = _properties(properties_text)
    if zlib.crc32(body) & 0x7FFFFFFF != crc:
        raise ValueError(f"wrong checksum at queue {queue} offset {offset}")
    if flags & BODY_COMPRESSED:
        body = zlib.decompress(body)
    return Record(
        queue=queue,
        offset=offset,
        log_offset=log_offset,
        length=length,
        body_length=body_length,
        key=properties.get("KEYS", "").strip(),
        tag=properties.get("TAGS", ""),
        digest=hashlib.md5(body).hexdigest(),
        properties=properties_text,
    )


def _properties(text):
    pairs = (pair.split("\x01", 1) for pair in text.split("\x02") if pair)
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
