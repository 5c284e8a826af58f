// One producer, or one push consumer, of the Java client with default settings: the scenarios of the
// Rust client's examples `throughput` and `consume_throughput`.
//
//   java -cp 'JARS/*' Throughput.java produce NAME_SERVER IN_FLIGHT SECONDS [BODY]
//   java -cp 'JARS/*' Throughput.java consume NAME_SERVER TOPIC SECONDS
//
// With one message in flight the producer sends synchronously, otherwise asynchronously.

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

public class Throughput {
    static final AtomicLong count = new AtomicLong();
    static final AtomicLong failed = new AtomicLong();
    static volatile boolean isOver;

    public static void main(String[] args) throws Exception {
        int seconds = Integer.parseInt(args[3]);
        if (args[0].equals("consume")) {
            consume(args[1], args[2]);
            measure("push consumer", seconds);
            System.exit(0);
        }
        int inFlight = Integer.parseInt(args[2]);
        byte[] body = new byte[args.length > 4 ? Integer.parseInt(args[4]) : 1024];
        DefaultMQProducer producer = new DefaultMQProducer("throughput");
        producer.setNamesrvAddr(args[1]);
        producer.start();
        Thread sender = new Thread(() -> send(producer, inFlight, body));
        sender.start();
        measure(inFlight + " in flight", seconds);
        isOver = true;
        sender.join();
        System.exit(0);
    }

    /** Measures how fast the count rises, once the virtual machine is warm. */
    static void measure(String name, int seconds) throws Exception {
        Thread.sleep(5000);
        OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long before = count.get(), cpu = system.getProcessCpuTime(), start = System.nanoTime();
        Thread.sleep(seconds * 1000L);
        long done = count.get() - before;
        double cpuUs = (system.getProcessCpuTime() - cpu) / 1000.0;
        double rate = done * 1e9 / (System.nanoTime() - start);
        System.out.printf("%s: %.0f messages/s, %.2f us CPU each, %d failed%n",
            name, rate, cpuUs / done, failed.get());
    }

    static void consume(String nameServer, String topic) throws Exception {
        String group = "throughput-" + ProcessHandle.current().pid();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            count.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (count.get() == 0) {
            Thread.sleep(1);
        }
    }

    static void send(DefaultMQProducer producer, int inFlight, byte[] body) {
        Semaphore room = new Semaphore(inFlight);
        SendCallback done = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                count.incrementAndGet();
                room.release();
            }

            @Override
            public void onException(Throwable error) {
                failed.incrementAndGet();
                room.release();
            }
        };
        while (!isOver) {
            try {
                if (inFlight == 1) {
                    producer.send(new Message("Throughput", body));
                    count.incrementAndGet();
                } else {
                    room.acquire();
                    producer.send(new Message("Throughput", body), done);
                }
            } catch (Exception error) {
                failed.incrementAndGet();
            }
        }
    }
}
