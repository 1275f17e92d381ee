package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

var acknowledgements = map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks()}

func produce(asked request) (answer, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(asked.Bootstrap),
		kgo.ProducerBatchCompression(codecs[asked.Codec]),
		kgo.RequiredAcks(acknowledgements[asked.Acks]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(time.Duration(asked.LingerMs) * time.Millisecond),
		kgo.ProducerBatchMaxBytes(4_000_000),
		kgo.UnknownTopicRetries(2),
	}
	if asked.AutoCreate {
		options = append(options, kgo.AllowAutoTopicCreation())
	}
	if !asked.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	records := make([]*kgo.Record, len(asked.Records))
	for i, given := range asked.Records {
		records[i] = &kgo.Record{Topic: asked.Topic, Partition: given.Partition, Key: given.Key, Value: given.Value}
		if given.Timestamp != nil {
			records[i].Timestamp = time.UnixMilli(*given.Timestamp)
		}
		for _, h := range given.Headers {
			records[i].Headers = append(records[i].Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
		}
	}
	// Results arrive as batches are acknowledged; the records themselves keep the order that was asked for.
	if err := client.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
		return nil, err
	}
	offsets := make([]int64, len(records))
	for i, sent := range records {
		offsets[i] = sent.Offset
	}
	return answer{"offsets": offsets}, nil
}

func starts(places json.RawMessage) (map[string]map[int32]kgo.Offset, error) {
	var listed [][3]any
	if err := json.Unmarshal(places, &listed); err != nil {
		return nil, err
	}
	found := make(map[string]map[int32]kgo.Offset)
	for _, place := range listed {
		topic, partition, start := place[0].(string), int32(place[1].(float64)), int64(place[2].(float64))
		if found[topic] == nil {
			found[topic] = make(map[int32]kgo.Offset)
		}
		switch start {
		case -2:
			found[topic][partition] = kgo.NewOffset().AtStart()
		case -1:
			found[topic][partition] = kgo.NewOffset().AtEnd()
		default:
			found[topic][partition] = kgo.NewOffset().At(start)
		}
	}
	return found, nil
}

func consume(asked request) (answer, error) {
	places, err := starts(asked.Partitions)
	if err != nil {
		return nil, err
	}
	resets := map[string]kgo.Offset{
		"none":     kgo.NoResetOffset(),
		"earliest": kgo.NewOffset().AtStart(),
		"latest":   kgo.NewOffset().AtEnd(),
	}
	isolation := kgo.ReadUncommitted()
	if asked.Isolation == "read_committed" {
		isolation = kgo.ReadCommitted()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(asked.Bootstrap),
		kgo.ConsumePartitions(places),
		kgo.ConsumeResetOffset(resets[asked.Reset]),
		kgo.FetchIsolationLevel(isolation),
		kgo.FetchMaxPartitionBytes(asked.MaxBytes),
		kgo.FetchMaxWait(time.Duration(asked.MaxWaitMs)*time.Millisecond),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	deadline, cancel := context.WithTimeout(context.Background(), time.Duration(asked.DeadlineMs)*time.Millisecond)
	defer cancel()
	records := []record{}
	for len(records) < asked.Count {
		fetches := client.PollFetches(deadline)
		if deadline.Err() != nil {
			return nil, fmt.Errorf("only %d records until the deadline", len(records))
		}
		for _, failed := range fetches.Errors() {
			return nil, failed.Err
		}
		fetches.EachRecord(func(found *kgo.Record) { records = append(records, shown(found)) })
	}
	return answer{"records": records}, nil
}

func shown(found *kgo.Record) record {
	timestamp := found.Timestamp.UnixMilli()
	headers := []header{}
	for _, h := range found.Headers {
		headers = append(headers, header{h.Key, h.Value})
	}
	return record{
		Topic: found.Topic, Partition: found.Partition, Offset: found.Offset,
		Timestamp: &timestamp, LogAppendTime: found.Attrs.TimestampType() == 1,
		Key: found.Key, Value: found.Value, Headers: headers,
	}
}
