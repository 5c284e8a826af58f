// Scenario runner for the Java client: one command per process, one JSON line per event.
//
// The contract that all runners share is in tests/interop/README.md. This source compiles against
// client 4.9.8 and 5.5.0 alike; what differs between them is called by reflection.

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

public class Runner {
    private static final Map<String, String> OPTIONS = new HashMap<>();

    public static void main(String[] args) throws Exception {
        for (int i = 1; i + 1 < args.length; i += 2) {
            OPTIONS.put(args[i], args[i + 1]);
        }
        switch (args[0]) {
            case "produce" -> produce();
            case "consume" -> consume();
            case "load" -> load();
            case "find" -> find();
            case "create-topic" -> createTopic();
            default -> throw new IllegalArgumentException("unknown command " + args[0]);
        }
        System.exit(0);
    }

    // --- commands ---

    private static void produce() throws Exception {
        DefaultMQProducer producer = startedProducer();
        Random random = new Random(number("--seed", 1));
        for (String mode : text("--modes", "sync").split(",")) {
            List<Message> messages = messages(mode, random);
            switch (mode) {
                case "sync" -> messages.forEach(message -> attempt(mode, List.of(message), producer));
                case "batch" -> {
                    int step = number("--batch", 10);
                    for (int i = 0; i < messages.size(); i += step) {
                        attempt(mode, messages.subList(i, Math.min(i + step, messages.size())), producer);
                    }
                }
                case "async" -> sendAsync(messages, producer);
                case "oneway" -> {
                    for (Message message : messages) {
                        producer.sendOneway(message);
                        emit("sent", describe(message), "mode", mode);
                    }
                }
                default -> throw new IllegalArgumentException("unknown mode " + mode);
            }
        }
        emit("done");
        producer.shutdown();
    }

    private static void consume() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(text("--group", null));
        consumer.setNamesrvAddr(text("--namesrv", null));
        consumer.setInstanceName(text("--member", "DEFAULT"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (text("--model", "clustering").equals("broadcasting")) {
            setBroadcasting(consumer);
        }
        // One thread, so that the order of the printed lines is the order of consumption.
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        // A heartbeat with a new subscription is lost when another one is under way, and until the next
        // one every pull is answered "not the latest".
        consumer.setHeartbeatBrokerInterval(5_000);
        consumer.subscribe(text("--topic", null), text("--tags", "*"));
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                MessageQueue queue = context.getMessageQueue();
                emit("received", describe(message), "broker", queue.getBrokerName(), "queue", message.getQueueId(),
                    "offset", message.getQueueOffset(), "id", message.getMsgId());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        emit("started");
        awaitEndOfInput();
        consumer.shutdown();
        emit("stopped");
    }

    /** The enum lives in another package in 5.x, so it is found through the setter. */
    private static void setBroadcasting(DefaultMQPushConsumer consumer) throws ReflectiveOperationException {
        for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                Object broadcasting = method.getParameterTypes()[0].getField("BROADCASTING").get(null);
                method.invoke(consumer, broadcasting);
            }
        }
    }

    /**
     * Many threads that send without rest, over crashes of the broker, until the input ends; a `p` in
     * the input makes them pause, an `r` resume.
     */
    private static void load() throws Exception {
        DefaultMQProducer producer = startedProducer();
        AtomicBoolean running = new AtomicBoolean(true);
        AtomicBoolean paused = new AtomicBoolean();
        AtomicLong next = new AtomicLong();
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < number("--threads", 16); t++) {
            Random random = new Random(t);
            Thread thread = new Thread(() -> {
                while (running.get()) {
                    if (paused.get()) {
                        pause(5);
                        continue;
                    }
                    Message message = message("load", next.getAndIncrement(), number("--body", 100), random);
                    if (!attempt("load", List.of(message), producer)) {
                        pause(20); // The broker is down: without this the threads would starve its restart.
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        emit("started");
        for (int command = System.in.read(); command >= 0; command = System.in.read()) {
            paused.set(command == 'p' || paused.get() && command != 'r');
        }
        running.set(false);
        for (Thread thread : threads) {
            thread.join();
        }
        emit("done");
        producer.shutdown();
    }

    /** Looks messages up: by key, by unique id and by offset id, whichever are given. */
    private static void find() throws Exception {
        DefaultMQProducer producer = startedProducer();
        String topic = text("--topic", null);
        for (String key : names("--keys")) {
            lookUp("key", key, () -> producer.queryMessage(topic, key, 32, 0, Long.MAX_VALUE).getMessageList());
        }
        for (String id : names("--uniques")) {
            lookUp("unique", id, () -> List.of(producer.viewMessage(topic, id)));
        }
        for (String id : names("--ids")) {
            lookUp("id", id, () -> List.of(producer.viewMessage(topic, id)));
        }
        emit("done");
        producer.shutdown();
    }

    private static void lookUp(String by, String wanted, Callable<List<MessageExt>> look) {
        try {
            for (MessageExt message : look.call()) {
                emit("found", describe(message), "by", by, "wanted", wanted, "unique", message.getMsgId(),
                    "queue", message.getQueueId(), "offset", message.getQueueOffset());
            }
        } catch (Exception error) {
            int code = error instanceof MQClientException client ? client.getResponseCode() : -1;
            emit("failed", "by", by, "wanted", wanted, "code", code, "error", String.valueOf(error));
        }
    }

    private static void createTopic() throws Exception {
        DefaultMQProducer producer = startedProducer();
        String topic = text("--topic", null);
        int queues = number("--queues", 8);
        try {
            DefaultMQProducer.class.getMethod("createTopic", String.class, String.class, int.class)
                .invoke(producer, "TBW102", topic, queues);
        } catch (NoSuchMethodException since5) {
            DefaultMQProducer.class.getMethod("createTopic", String.class, String.class, int.class, Map.class)
                .invoke(producer, "TBW102", topic, queues, Collections.emptyMap());
        }
        emit("done");
        producer.shutdown();
    }

    // --- sending ---

    private static DefaultMQProducer startedProducer() throws MQClientException {
        DefaultMQProducer producer = new DefaultMQProducer(text("--group", "producers"));
        producer.setNamesrvAddr(text("--namesrv", null));
        producer.setSendMsgTimeout(number("--timeout-ms", 10_000));
        int bytesMax = number("--bytes-max", 0);
        if (bytesMax > 0) {
            producer.setMaxMessageSize(bytesMax);
            producer.setCompressMsgBodyOverHowmuch(bytesMax);
        }
        producer.setRetryTimesWhenSendFailed(number("--retries", 2));
        producer.start();
        return producer;
    }

    /** Sends one message, or several as a batch, and prints what came of it. */
    private static boolean attempt(String mode, List<Message> messages, DefaultMQProducer producer) {
        try {
            SendResult result = mode.equals("batch") ? producer.send(messages) : producer.send(messages.get(0));
            printResult(mode, messages, result);
            return true;
        } catch (Exception error) {
            printFailure(mode, messages, error);
            return false;
        }
    }

    private static void sendAsync(List<Message> messages, DefaultMQProducer producer) throws Exception {
        CountDownLatch outstanding = new CountDownLatch(messages.size());
        for (Message message : messages) {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    printResult("async", List.of(message), result);
                    outstanding.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    printFailure("async", List.of(message), error);
                    outstanding.countDown();
                }
            });
        }
        outstanding.await();
    }

    private static void printResult(String mode, List<Message> messages, SendResult result) {
        String[] ids = result.getOffsetMsgId().split(",");
        String[] uniques = result.getMsgId().split(",");
        for (int i = 0; i < messages.size(); i++) {
            emit("sent", describe(messages.get(i)), "mode", mode, "status", result.getSendStatus().name(),
                "broker", result.getMessageQueue().getBrokerName(), "queue", result.getMessageQueue().getQueueId(),
                "offset", result.getQueueOffset() + i, "id", ids[i], "unique", uniques[i]);
        }
    }

    private static void printFailure(String mode, List<Message> messages, Throwable error) {
        int code = error instanceof MQBrokerException broker ? broker.getResponseCode()
            : error instanceof MQClientException client ? client.getResponseCode() : -1;
        for (Message message : messages) {
            emit("failed", "mode", mode, "key", message.getKeys(), "code", code, "error", String.valueOf(error));
        }
    }

    // --- messages ---

    private static List<Message> messages(String mode, Random random) {
        int count = number("--count", 10);
        int body = number("--body", 100);
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            boolean large = number("--large-every", 0) > 0 && i % number("--large-every", 0) == 0;
            int length = i == count - 1 ? number("--last-body", body) : large ? 6_000 : body;
            messages.add(message(mode, i, length, random));
        }
        return messages;
    }

    private static Message message(String mode, long number, int bodyLength, Random random) {
        String key = String.format("%s-%s-%07d", text("--prefix", "m"), mode, number);
        byte[] body = new byte[bodyLength];
        for (int i = 0; i < body.length; i++) {
            body[i] = (byte) ('0' + random.nextInt(64)); // Text, since the C++ client cuts bodies at a zero byte.
        }
        String[] tags = text("--tags", "A").split(",");
        return new Message(text("--topic", null), tags[(int) (number % tags.length)], key, body);
    }

    private static Object[] describe(Message message) {
        return new Object[] {"key", message.getKeys(), "tag", message.getTags(), "length", message.getBody().length,
            "digest", digest(message.getBody())};
    }

    private static String digest(byte[] body) {
        try {
            StringBuilder hex = new StringBuilder();
            for (byte b : MessageDigest.getInstance("MD5").digest(body)) {
                hex.append(String.format("%02x", b));
            }
            return hex.toString();
        } catch (java.security.NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    // --- options, events ---

    private static String text(String name, String fallback) {
        String value = OPTIONS.getOrDefault(name, fallback);
        if (value == null) {
            throw new IllegalArgumentException(name + " is missing");
        }
        return value;
    }

    private static List<String> names(String name) {
        String value = text(name, "");
        return value.isEmpty() ? List.of() : List.of(value.split(","));
    }

    private static int number(String name, int fallback) {
        return Integer.parseInt(text(name, String.valueOf(fallback)));
    }

    private static void emit(String event, Object[] first, Object... rest) {
        List<Object> pairs = new ArrayList<>(List.of(first));
        pairs.addAll(List.of(rest));
        emit(event, pairs.toArray());
    }

    private static void emit(String event, Object... pairs) {
        StringBuilder line = new StringBuilder("{\"event\":\"").append(event).append('"');
        for (int i = 0; i < pairs.length; i += 2) {
            line.append(",\"").append(pairs[i]).append("\":");
            line.append(pairs[i + 1] instanceof Number ? pairs[i + 1].toString() : quoted(String.valueOf(pairs[i + 1])));
        }
        byte[] bytes = line.append("}\n").toString().getBytes(StandardCharsets.UTF_8);
        synchronized (System.out) {
            System.out.write(bytes, 0, bytes.length);
            System.out.flush();
        }
    }

    private static String quoted(String value) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : value.toCharArray()) {
            out.append(c == '"' || c == '\\' ? "\\" + c : c < ' ' ? " " : String.valueOf(c));
        }
        return out.append('"').toString();
    }

    private static void awaitEndOfInput() throws java.io.IOException {
        while (System.in.read() >= 0) { }
    }

    private static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
