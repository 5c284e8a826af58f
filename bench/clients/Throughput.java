// One producer of the Java client with default settings, the same scenario as the Rust client's
// example `throughput`: java -cp 'JARS/*' Throughput.java NAME_SERVER IN_FLIGHT SECONDS [BODY]
//
// With one message in flight it sends synchronously, otherwise asynchronously.

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

public class Throughput {
    static final AtomicLong sent = new AtomicLong();
    static final AtomicLong failed = new AtomicLong();
    static volatile boolean isOver;

    public static void main(String[] args) throws Exception {
        int inFlight = Integer.parseInt(args[1]);
        int seconds = Integer.parseInt(args[2]);
        byte[] body = new byte[args.length > 3 ? Integer.parseInt(args[3]) : 1024];
        DefaultMQProducer producer = new DefaultMQProducer("throughput");
        producer.setNamesrvAddr(args[0]);
        producer.start();
        Thread sender = new Thread(() -> send(producer, inFlight, body));
        sender.start();
        // The virtual machine warms up.
        Thread.sleep(5000);
        OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long before = sent.get(), cpu = system.getProcessCpuTime(), start = System.nanoTime();
        Thread.sleep(seconds * 1000L);
        long count = sent.get() - before;
        double cpuUs = (system.getProcessCpuTime() - cpu) / 1000.0;
        double rate = count * 1e9 / (System.nanoTime() - start);
        System.out.printf("%d in flight: %.0f messages/s, %.2f us CPU each, %d failed%n",
            inFlight, rate, cpuUs / count, failed.get());
        isOver = true;
        sender.join();
        System.exit(0);
    }

    static void send(DefaultMQProducer producer, int inFlight, byte[] body) {
        Semaphore room = new Semaphore(inFlight);
        SendCallback done = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                sent.incrementAndGet();
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
                    sent.incrementAndGet();
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
