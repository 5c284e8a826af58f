import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

public class Example {
    public static void main(String[] args) throws Exception {
        String namesrv = args.length > 0 ? args[0] : "127.0.0.1:9876";

        DefaultMQProducer producer = new DefaultMQProducer("example-java-producers");
        producer.setNamesrvAddr(namesrv);
        producer.start();
        for (int i = 0; i < 10; i++) {
            Message message = new Message("example-java", "greeting", ("hello " + i).getBytes());
            System.out.println("sent " + producer.send(message));
        }
        producer.shutdown();

        CountDownLatch outstanding = new CountDownLatch(10);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("example-java-consumers");
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("example-java", "greeting");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> System.out.println("received " + new String(message.getBody())));
            messages.forEach(message -> outstanding.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        outstanding.await();
        consumer.shutdown();
    }
}
