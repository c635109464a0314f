// Load for NATS JetStream by its own client: publishing, watching, filling and a work queue. Prints one JSON object.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"sort"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const wait = 30 * time.Second

var (
	url     = flag.String("url", "", "server")
	work    = flag.String("work", "", "publish, watch or queue")
	count   = flag.Int("count", 1000, "messages")
	workers = flag.Int("connections", 16, "connections")
	batch   = flag.Int("batch", 1, "messages that a connection has on the way; of a queue: that a worker fetches")
	payload = flag.String("payload", "{}", "payload")
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func connect() (*nats.Conn, nats.JetStreamContext) {
	connection, err := nats.Connect(*url)
	check(err)
	stream, err := connection.JetStream(nats.PublishAsyncMaxPending(4096))
	check(err)
	return connection, stream
}

func makeStream(name string, retention nats.RetentionPolicy) {
	connection, stream := connect()
	defer connection.Close()
	config := &nats.StreamConfig{Name: name, Subjects: []string{name}, Storage: nats.FileStorage, Retention: retention}
	if _, err := stream.AddStream(config); err != nil && err != nats.ErrStreamNameAlreadyInUse {
		log.Fatal(err)
	}
}

// parallel runs a function on connections of their own, starting together, and says how long all of them took.
func parallel(each func(*nats.Conn, nats.JetStreamContext)) time.Duration {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for range *workers {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			connection, stream := connect()
			defer connection.Close()
			ready.Done()
			<-start
			each(connection, stream)
		}()
	}
	ready.Wait()
	begun := time.Now()
	close(start)
	done.Wait()
	return time.Since(begun)
}

// publish sends the messages of one connection, each acknowledged, a batch at a time.
func publish(stream nats.JetStreamContext, subject string, messages, batch int, took *[]time.Duration) {
	body := []byte(*payload)
	for sent := 0; sent < messages; sent += batch {
		begun := time.Now()
		if batch == 1 {
			_, err := stream.Publish(subject, body)
			check(err)
		} else {
			futures := make([]nats.PubAckFuture, 0, batch)
			for range batch {
				future, err := stream.PublishAsync(subject, body)
				check(err)
				futures = append(futures, future)
			}
			for _, future := range futures {
				select {
				case <-future.Ok():
				case err := <-future.Err():
					log.Fatal(err)
				case <-time.After(wait):
					log.Fatal("no acknowledgement")
				}
			}
		}
		*took = append(*took, time.Since(begun))
	}
}

func p50(took []time.Duration) float64 {
	sort.Slice(took, func(a, b int) bool { return took[a] < took[b] })
	return float64(took[len(took)/2].Microseconds()) / 1000
}

func publishAll(subject string, batch int) (float64, float64) {
	var lock sync.Mutex
	var all []time.Duration
	each := *count / *workers / batch * batch
	elapsed := parallel(func(_ *nats.Conn, stream nats.JetStreamContext) {
		var took []time.Duration
		publish(stream, subject, each, batch, &took)
		lock.Lock()
		defer lock.Unlock()
		all = append(all, took...)
	})
	return float64(each**workers) / elapsed.Seconds(), p50(all)
}

// watch times a message from publishing to a subscriber of the stream, one at a time.
func watch(subject string) float64 {
	_, reading := connect()
	_, writing := connect()
	subscription, err := reading.SubscribeSync(subject, nats.OrderedConsumer(), nats.DeliverNew())
	check(err)
	var took []time.Duration
	for range *count {
		begun := time.Now()
		future, err := writing.PublishAsync(subject, []byte(*payload))
		check(err)
		_, err = subscription.NextMsg(wait)
		check(err)
		took = append(took, time.Since(begun))
		<-future.Ok()
	}
	return p50(took[len(took)/10:])
}

// queue enqueues all jobs, then lets the workers fetch and ack them; the last ack of a batch is answered, so all are done.
func queue(subject string) float64 {
	fetched := *batch
	rate, _ := publishAll(subject, 100)
	enqueued := time.Duration(float64(*count) / rate * float64(time.Second))
	_, stream := connect()
	_, err := stream.AddConsumer(subject, &nats.ConsumerConfig{
		Durable: "workers", AckPolicy: nats.AckExplicitPolicy, AckWait: wait, MaxAckPending: 100000,
	})
	check(err)
	each := *count / *workers
	elapsed := parallel(func(_ *nats.Conn, stream nats.JetStreamContext) {
		subscription, err := stream.PullSubscribe(subject, "workers", nats.Bind(subject, "workers"))
		check(err)
		for finished := 0; finished < each; {
			messages, err := subscription.Fetch(min(fetched, each-finished), nats.MaxWait(wait))
			check(err)
			for place, message := range messages {
				if place == len(messages)-1 {
					check(message.AckSync())
				} else {
					check(message.Ack())
				}
			}
			finished += len(messages)
		}
	})
	info, err := stream.StreamInfo(subject)
	check(err)
	if info.State.Msgs != 0 {
		log.Fatalf("%d jobs are left", info.State.Msgs)
	}
	return float64(*count) / (enqueued + elapsed).Seconds()
}

func main() {
	log.SetFlags(0)
	flag.Parse()
	told := map[string]float64{}
	switch *work {
	case "publish":
		makeStream("bench", nats.LimitsPolicy)
		told["per_s"], told["p50_ms"] = publishAll("bench", *batch)
	case "watch":
		makeStream("watched", nats.LimitsPolicy)
		told["p50_ms"] = watch("watched")
	case "queue":
		makeStream("jobs", nats.WorkQueuePolicy)
		told["per_s"] = queue("jobs")
	default:
		log.Fatalf("unknown work %q", *work)
	}
	text, err := json.Marshal(told)
	check(err)
	fmt.Fprintln(os.Stdout, string(text))
}
