'use strict';
const httpclient = require('urllib');
const { Producer, Consumer, Message } = require('ali-ons');

const namesrv = process.argv[2] || '127.0.0.1:9876';
const quiet = { debug() {}, info() {}, warn() {}, error: console.error };
const connection = { httpclient, logger: quiet, nameSrv: namesrv, namesrv };

async function main() {
  const producer = new Producer({ ...connection, producerGroup: 'example-node-producers' });
  await producer.ready();
  // `send` fails for a topic that does not exist yet; with this line the first send creates it.
  await producer._mqClient.updateTopicRouteInfoFromNameServer('example-node', true, producer);
  for (let i = 0; i < 10; i++) {
    const result = await producer.send(new Message('example-node', 'greeting', `hello ${i}`));
    console.log('sent', result.sendStatus, result.msgId);
  }

  const consumer = new Consumer({
    ...connection,
    consumerGroup: 'example-node-consumers',
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  let outstanding = 10;
  await new Promise(resolve => {
    consumer.subscribe('example-node', 'greeting', async message => {
      console.log('received', message.body.toString());
      if (--outstanding === 0) resolve();
    });
  });
  await consumer.close();
}

main().then(() => process.exit(0), error => { console.error(error); process.exit(1); });
