'use strict';

// Scenario runner for the Node client `ali-ons`: one command per process, one JSON line per event.
//
// The contract that all runners share is in tests/interop/README.md. `send` returns a promise, so
// `sync` awaits each of them and `async` awaits all together; the client has neither oneway nor batch.

const crypto = require('crypto');
const { createRequire } = require('module');

// The packages are installed in the build folder, not beside this file.
const installed = createRequire(process.env.INTEROP_NODE_PACKAGES + '/');
const httpclient = installed('urllib');
const { Producer, Consumer, Message } = installed('ali-ons');

const options = {};
for (let i = 3; i + 1 < process.argv.length; i += 2) {
  options[process.argv[i]] = process.argv[i + 1];
}
const text = (name, fallback) => options[name] ?? fallback;
const number = (name, fallback) => Number(text(name, fallback));
const emit = (event, fields = {}) => process.stdout.write(JSON.stringify({ event, ...fields }) + '\n');

const warn = (...parts) => console.error(...parts);
const logger = { debug() {}, info() {}, warn, error: warn };
const connection = {
  httpclient,
  logger,
  nameSrv: text('--namesrv'),
  namesrv: text('--namesrv'),
};

async function produce() {
  const producer = new Producer({
    ...connection,
    producerGroup: text('--group', 'producers'),
    sendMsgTimeout: 10000,
  });
  producer.on('error', warn);
  await producer.ready();
  if (text('--create', 'false') === 'true') {
    // `send` fails for a topic without a route; this takes the route of TBW102 for it, as other clients do.
    await producer._mqClient.updateTopicRouteInfoFromNameServer(text('--topic'), true, producer);
  }
  for (const mode of text('--modes', 'sync').split(',')) {
    const sends = messages(mode).map(message => () => attempt(producer, mode, message));
    if (mode === 'async') {
      await Promise.all(sends.map(send => send()));
    } else if (mode === 'sync') {
      for (const send of sends) {
        await send();
      }
    } else {
      throw new Error(`unknown mode ${mode}`);
    }
  }
  emit('done');
}

async function attempt(producer, mode, message) {
  // Described before it is sent: the client compresses the body in place.
  const sent = { ...describe(message), mode };
  try {
    const result = await producer.send(message);
    const { brokerName, queueId } = result.messageQueue;
    emit('sent', {
      ...sent, status: result.sendStatus, broker: brokerName, queue: Number(queueId),
      offset: Number(result.queueOffset), id: result.msgId,
    });
  } catch (error) {
    emit('failed', { mode, key: sent.key, code: error.code ?? -1, error: String(error) });
  }
}

async function consume() {
  const consumer = new Consumer({
    ...connection,
    consumerGroup: text('--group'),
    instanceName: text('--member', 'DEFAULT'),
    isBroadcast: text('--model', 'clustering') === 'broadcasting',
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  consumer.on('error', warn);
  consumer.subscribe(text('--topic'), text('--tags', '*'), async (message, queue) => {
    emit('received', {
      ...describe(message), broker: queue.brokerName, queue: message.queueId,
      offset: Number(message.queueOffset), id: message.msgId,
    });
  });
  await consumer.ready();
  emit('started');
  process.stdin.resume();
  await new Promise(resolve => process.stdin.on('end', resolve));
  await consumer.close();
  emit('stopped');
}

function messages(mode) {
  const tags = text('--tags', 'A').split(',');
  return Array.from({ length: number('--count', 10) }, (_, i) => {
    const every = number('--large-every', 0);
    const length = every > 0 && i % every === 0 ? 6000 : number('--body', 100);
    // Text, since the C++ client cuts bodies at a zero byte.
    const body = crypto.randomBytes(length).toString('hex').slice(0, length);
    const message = new Message(text('--topic'), tags[i % tags.length], body);
    message.keys = [`${text('--prefix', 'm')}-${mode}-${String(i).padStart(7, '0')}`];
    return message;
  });
}

function describe(message) {
  const digest = crypto.createHash('md5').update(message.body).digest('hex');
  return { key: message.keys, tag: message.tags, length: message.body.length, digest };
}

// The client keeps sockets and timers, so the end has to be said.
({ produce, consume })[process.argv[2]]().then(() => process.exit(0), error => {
  console.error(error);
  process.exit(1);
});
