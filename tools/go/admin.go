package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var calls = map[string]func(context.Context, *kadm.Client, request) (answer, error){
	"create_topic":      createTopic,
	"delete_topic":      deleteTopic,
	"list_topics":       listTopics,
	"describe_topic":    describeTopic,
	"create_partitions": createPartitions,
	"describe_configs":  describeConfigs,
	"alter_configs":     alterConfigs,
	"delete_records":    deleteRecords,
	"describe_cluster":  describeCluster,
	"log_dirs":          logDirs,
	"list_offsets":      listOffsets,
}

func administer(asked request) (answer, error) {
	call, known := calls[asked.Op]
	if !known {
		return nil, fmt.Errorf("no such request: %q", asked.Op)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(asked.Bootstrap))
	if err != nil {
		return nil, err
	}
	admin := kadm.NewClient(client)
	defer admin.Close()
	deadline, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return call(deadline, admin, asked)
}

func createTopic(ctx context.Context, admin *kadm.Client, asked request) (answer, error) {
	var partitions int32
	if err := json.Unmarshal(asked.Partitions, &partitions); err != nil {
		return nil, err
	}
	config := make(map[string]*string)
	for name, value := range asked.Config {
		config[name] = &value
	}
	create := admin.CreateTopics
	if asked.ValidateOnly {
		create = admin.ValidateCreateTopics
	}
	results, err := create(ctx, partitions, asked.ReplicationFactor, config, asked.Topic)
	if err == nil {
		err = results[asked.Topic].Err
	}
	return answer{}, err
}

func deleteTopic(ctx context.Context, admin *kadm.Client, asked request) (answer, error) {
	results, err := admin.DeleteTopics(ctx, asked.Topic)
	if err == nil {
		err = results[asked.Topic].Err
	}
	return answer{}, err
}

func listTopics(ctx context.Context, admin *kadm.Client, asked request) (answer, error) {
	found, err := admin.ListTopics(ctx)
	return answer{"topics": found.Names()}, err
}

func describeTopic(ctx context.Context, admin *kadm.Client, asked request) (answer, error) {
	found, err := admin.ListTopics(ctx, asked.Topic)
	if err != nil {
		return nil, err
	}
	partitions := [][]any{}
	for _, partition := range found[asked.Topic].Partitions.Sorted() {
		partitions = append(partitions, []any{partition.Partition, partition.Leader, partition.Replicas, partition.ISR})
	}
	return answer{"partitions": partitions}, found[asked.Topic].Err
}

func createPartitions(ctx context.Context, admin *kadm.Client, asked request) (answer, error) {
	results, err := admin.UpdatePartitions(ctx, asked.Count, asked.Topic)
	if err == nil {
		err = results[asked.Topic].Err
	}
	return answer{}, err
}

func describeConfigs(ctx context.Context, admin *kadm.Client, asked request) (answer, error) {
	describe := admin.DescribeTopicConfigs
	if asked.Resource == "broker" {
		describe = func(ctx context.Context, names ...string) (kadm.ResourceConfigs, error) {
			return admin.DescribeBrokerConfigs(ctx, 1)
		}
	}
	found, err := describe(ctx, asked.Name)
	if err != nil {
		return nil, err
	}
	resource, err := found.On(asked.Name, nil)
	if err != nil {
		return nil, err
	}
	configs := make(map[string][2]any)
	for _, config := range resource.Configs {
		configs[config.Key] = [2]any{config.Value, int(config.Source)}
	}
	return answer{"configs": configs}, resource.Err
}

func alterConfigs(ctx context.Context, admin *kadm.Client, asked request) (answer, error) {
	changes := []kadm.AlterConfig{}
	for _, change := range asked.Changes {
		operation := map[string]kadm.IncrementalOp{
			"SET": kadm.SetConfig, "DELETE": kadm.DeleteConfig,
			"APPEND": kadm.AppendConfig, "SUBTRACT": kadm.SubtractConfig,
		}[*change[0]]
		changes = append(changes, kadm.AlterConfig{Op: operation, Name: *change[1], Value: change[2]})
	}
	var results kadm.AlterConfigsResponses
	var err error
	switch {
	case asked.Resource == "broker" && asked.Incremental:
		results, err = admin.AlterBrokerConfigs(ctx, changes, 1)
	case asked.Resource == "broker":
		results, err = admin.AlterBrokerConfigsState(ctx, changes, 1)
	case asked.Incremental:
		results, err = admin.AlterTopicConfigs(ctx, changes, asked.Name)
	default:
		results, err = admin.AlterTopicConfigsState(ctx, changes, asked.Name)
	}
	if err != nil {
		return nil, err
	}
	result, err := results.On(asked.Name, nil)
	if err == nil {
		err = result.Err
	}
	return answer{}, err
}

func deleteRecords(ctx context.Context, admin *kadm.Client, asked request) (answer, error) {
	var offsets kadm.Offsets
	offsets.AddOffset(asked.Topic, asked.Partition, asked.Offset, -1)
	results, err := admin.DeleteRecords(ctx, offsets)
	if err != nil {
		return nil, err
	}
	result, _ := results.Lookup(asked.Topic, asked.Partition)
	return answer{"low_watermark": result.LowWatermark}, result.Err
}

// kadm asks Metadata for this; the request of its own is asked too, and must agree.
func describeCluster(ctx context.Context, admin *kadm.Client, asked request) (answer, error) {
	found, err := admin.BrokerMetadata(ctx)
	if err != nil {
		return nil, err
	}
	brokers := [][]any{}
	for _, broker := range found.Brokers {
		brokers = append(brokers, []any{broker.NodeID, broker.Host, broker.Port})
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(asked.Bootstrap))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	described, err := kmsg.NewPtrDescribeClusterRequest().RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(described.ErrorCode)
	}
	if err == nil && (described.ClusterID != found.Cluster || len(described.Brokers) != len(found.Brokers)) {
		err = fmt.Errorf("DescribeCluster says %+v, Metadata says %+v", described, found)
	}
	return answer{"cluster_id": found.Cluster, "controller": found.Controller, "brokers": brokers}, err
}

func logDirs(ctx context.Context, admin *kadm.Client, asked request) (answer, error) {
	found, err := admin.DescribeAllLogDirs(ctx, nil)
	if err != nil {
		return nil, err
	}
	dirs := make(map[string]map[string]int64)
	found.Each(func(dir kadm.DescribedLogDir) {
		sizes := make(map[string]int64)
		dir.Topics.Each(func(partition kadm.DescribedLogDirPartition) {
			sizes[fmt.Sprintf("%s-%d", partition.Topic, partition.Partition)] = partition.Size
		})
		dirs[dir.Dir] = sizes
	})
	return answer{"dirs": dirs}, nil
}

func listOffsets(ctx context.Context, admin *kadm.Client, asked request) (answer, error) {
	list := func(ctx context.Context, topics ...string) (kadm.ListedOffsets, error) {
		return admin.ListOffsetsAfterMilli(ctx, asked.Timestamp, topics...)
	}
	switch asked.Timestamp {
	case -1:
		list = admin.ListEndOffsets
	case -2:
		list = admin.ListStartOffsets
	case -3:
		list = admin.ListMaxTimestampOffsets
	}
	found, err := list(ctx, asked.Topic)
	if err != nil {
		return nil, err
	}
	offset, known := found.Lookup(asked.Topic, asked.Partition)
	if !known {
		return nil, found.Error()
	}
	return answer{"offset": offset.Offset, "timestamp": offset.Timestamp}, offset.Err
}
