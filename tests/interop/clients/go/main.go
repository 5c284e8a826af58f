// Scenario runner for the Go client: one command per process, one JSON line per event.
//
// The contract that all runners share is in tests/interop/README.md.
package main

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
)

// The client can write both header encodings, but has no public switch: it reads this variable.
//
//go:linkname codecType github.com/apache/rocketmq-client-go/v2/internal/remote.codecType
var codecType byte

var (
	options   = map[string]string{}
	printing  sync.Mutex
	errorCode = regexp.MustCompile(`CODE: (\d+)`)
)

func main() {
	for i := 2; i+1 < len(os.Args); i += 2 {
		options[os.Args[i]] = os.Args[i+1]
	}
	rlog.SetLogLevel("error")
	rlog.SetOutputPath(text("--log", "go-client.log"))
	if text("--encoding", "json") == "rocketmq" {
		codecType = 1
	}
	switch os.Args[1] {
	case "produce":
		produce()
	case "consume":
		consume()
	case "create-topic":
		createTopic()
	default:
		panic("unknown command " + os.Args[1])
	}
}

// --- commands ---

func produce() {
	started := startedProducer()
	for _, mode := range strings.Split(text("--modes", "sync"), ",") {
		messages := messages(mode)
		switch mode {
		case "sync":
			for _, message := range messages {
				attempt(started, mode, message)
			}
		case "batch":
			step := number("--batch", 10)
			for i := 0; i < len(messages); i += step {
				attempt(started, mode, messages[i:min(i+step, len(messages))]...)
			}
		case "async":
			sendAsync(started, messages)
		case "oneway":
			for _, message := range messages {
				must(started.SendOneWay(context.Background(), message))
				emit("sent", describe(message, map[string]any{"mode": mode}))
			}
		default:
			panic("unknown mode " + mode)
		}
	}
	emit("done", map[string]any{})
	must(started.Shutdown())
}

func consume() {
	model := consumer.Clustering
	if text("--model", "clustering") == "broadcasting" {
		model = consumer.BroadCasting
	}
	member, err := rocketmq.NewPushConsumer(
		consumer.WithGroupName(text("--group", "")),
		consumer.WithNameServer([]string{text("--namesrv", "")}),
		consumer.WithInstance(text("--member", "DEFAULT")),
		consumer.WithConsumerModel(model),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		// One at a time, so that the order of the printed lines is the order of consumption.
		consumer.WithConsumeGoroutineNums(1),
	)
	must(err)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: text("--tags", "*")}
	must(member.Subscribe(text("--topic", ""), selector,
		func(_ context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range batch {
				emit("received", describe(&message.Message, map[string]any{
					"broker": message.Queue.BrokerName, "queue": message.Queue.QueueId,
					"offset": message.QueueOffset, "id": message.OffsetMsgId,
				}))
			}
			return consumer.ConsumeSuccess, nil
		}))
	must(member.Start())
	emit("started", map[string]any{})
	_, _ = io.Copy(io.Discard, os.Stdin)
	must(member.Shutdown())
	emit("stopped", map[string]any{})
}

func createTopic() {
	client, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{text("--namesrv", "")})))
	must(err)
	must(client.CreateTopic(context.Background(),
		admin.WithTopicCreate(text("--topic", "")),
		admin.WithBrokerAddrCreate(text("--broker", "")),
		admin.WithReadQueueNums(number("--queues", 8)),
		admin.WithWriteQueueNums(number("--queues", 8))))
	emit("done", map[string]any{})
}

// --- sending ---

func startedProducer() rocketmq.Producer {
	settings := []producer.Option{
		producer.WithGroupName(text("--group", "producers")),
		producer.WithNameServer([]string{text("--namesrv", "")}),
		producer.WithSendMsgTimeout(10 * time.Second),
	}
	if bytesMax := number("--bytes-max", 0); bytesMax > 0 {
		settings = append(settings, producer.WithCompressMsgBodyOverHowmuch(bytesMax), producer.WithRetry(0))
	}
	started, err := rocketmq.NewProducer(settings...)
	must(err)
	must(started.Start())
	return started
}

func attempt(started rocketmq.Producer, mode string, messages ...*primitive.Message) {
	result, err := started.SendSync(context.Background(), messages...)
	if err == nil && result.Status == primitive.SendUnknownError {
		err = fmt.Errorf("refused without a reason")
	}
	printOutcome(mode, messages, result, err)
}

func sendAsync(started rocketmq.Producer, messages []*primitive.Message) {
	var outstanding sync.WaitGroup
	for _, message := range messages {
		outstanding.Add(1)
		must(started.SendAsync(context.Background(),
			func(_ context.Context, result *primitive.SendResult, err error) {
				printOutcome("async", []*primitive.Message{message}, result, err)
				outstanding.Done()
			}, message))
	}
	outstanding.Wait()
}

func printOutcome(mode string, messages []*primitive.Message, result *primitive.SendResult, err error) {
	if err != nil {
		code := -1
		if found := errorCode.FindStringSubmatch(err.Error()); found != nil {
			code, _ = strconv.Atoi(found[1])
		}
		for _, message := range messages {
			emit("failed", map[string]any{"mode": mode, "key": message.GetKeys(), "code": code, "error": err.Error()})
		}
		return
	}
	status := map[primitive.SendStatus]string{primitive.SendOK: "SEND_OK"}[result.Status]
	ids := strings.Split(result.OffsetMsgID, ",")
	for i, message := range messages {
		emit("sent", describe(message, map[string]any{
			"mode": mode, "status": status, "broker": result.MessageQueue.BrokerName,
			"queue": result.MessageQueue.QueueId, "offset": result.QueueOffset + int64(i), "id": ids[i],
		}))
	}
}

// --- messages ---

func messages(mode string) []*primitive.Message {
	count, body := number("--count", 10), number("--body", 100)
	random := rand.New(rand.NewSource(int64(number("--seed", 1))))
	tags := strings.Split(text("--tags", "A"), ",")
	var messages []*primitive.Message
	for i := 0; i < count; i++ {
		length := body
		if every := number("--large-every", 0); every > 0 && i%every == 0 {
			length = 6_000
		}
		if i == count-1 {
			length = number("--last-body", length)
		}
		content := make([]byte, length)
		for j := range content {
			content[j] = byte('0' + random.Intn(64)) // Text, since the C++ client cuts bodies at a zero byte.
		}
		message := primitive.NewMessage(text("--topic", ""), content)
		message.WithTag(tags[i%len(tags)])
		message.WithKeys([]string{fmt.Sprintf("%s-%s-%07d", text("--prefix", "m"), mode, i)})
		messages = append(messages, message)
	}
	return messages
}

func describe(message *primitive.Message, fields map[string]any) map[string]any {
	sum := md5.Sum(message.Body)
	fields["key"] = strings.TrimSpace(message.GetKeys())
	fields["tag"] = message.GetTags()
	fields["length"] = len(message.Body)
	fields["digest"] = hex.EncodeToString(sum[:])
	return fields
}

// --- options, events ---

func text(name, fallback string) string {
	if value, given := options[name]; given {
		return value
	}
	return fallback
}

func number(name string, fallback int) int {
	value, given := options[name]
	if !given {
		return fallback
	}
	parsed, err := strconv.Atoi(value)
	must(err)
	return parsed
}

func emit(event string, fields map[string]any) {
	fields["event"] = event
	line, err := json.Marshal(fields)
	must(err)
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(line))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
