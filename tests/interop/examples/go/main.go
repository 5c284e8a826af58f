package main

import (
	"context"
	"fmt"
	"os"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func main() {
	namesrv := append(os.Args[1:], "127.0.0.1:9876")[:1]
	p, _ := rocketmq.NewProducer(producer.WithGroupName("example-go-producers"), producer.WithNameServer(namesrv))
	p.Start()
	for i := 0; i < 10; i++ {
		message := primitive.NewMessage("example-go", []byte(fmt.Sprint("hello ", i))).WithTag("greeting")
		result, err := p.SendSync(context.Background(), message)
		if err != nil {
			panic(err)
		}
		fmt.Println("sent", result)
	}
	p.Shutdown()
	received := make(chan string)
	c, _ := rocketmq.NewPushConsumer(consumer.WithGroupName("example-go-consumers"),
		consumer.WithNameServer(namesrv), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	c.Subscribe("example-go", consumer.MessageSelector{Type: consumer.TAG, Expression: "greeting"},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			received <- string(messages[0].Body)
			return consumer.ConsumeSuccess, nil
		})
	c.Start()
	for i := 0; i < 10; i++ {
		fmt.Println("received", <-received)
	}
	c.Shutdown()
}
