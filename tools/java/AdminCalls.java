import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.requests.DescribeConfigsResponse;

/** The calls of Kafka's admin client, by the name that "op" has in a request to ClientShell. */
final class AdminCalls {
    private AdminCalls() {
    }

    static ObjectNode answer(JsonNode request) throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", request.get("bootstrap").asText());
        try (Admin admin = Admin.create(config)) {
            return switch (request.get("op").asText()) {
                case "create_topic" -> createTopic(admin, request);
                case "delete_topic" -> done(admin.deleteTopics(List.of(topic(request))).all().get());
                case "list_topics" -> listTopics(admin);
                case "describe_topic" -> describeTopic(admin, topic(request));
                case "create_partitions" -> createPartitions(admin, request);
                case "describe_configs" -> describeConfigs(admin, resource(request));
                case "alter_configs" -> alterConfigs(admin, request);
                case "delete_records" -> deleteRecords(admin, request);
                case "describe_cluster" -> describeCluster(admin);
                case "log_dirs" -> logDirs(admin);
                case "list_offsets" -> listOffsets(admin, request);
                default -> throw new IllegalArgumentException("no such request: " + request);
            };
        }
    }

    private static ObjectNode done(Object nothing) {
        return ClientShell.JSON.createObjectNode();
    }

    private static String topic(JsonNode request) {
        return request.get("topic").asText();
    }

    private static ObjectNode createTopic(Admin admin, JsonNode request) throws Exception {
        int partitions = request.get("partitions").asInt();
        int replicas = request.get("replication_factor").asInt();
        NewTopic topic = new NewTopic(
            topic(request),
            partitions < 0 ? Optional.empty() : Optional.of(partitions),
            replicas < 0 ? Optional.empty() : Optional.of((short) replicas));
        Map<String, String> config = new java.util.HashMap<>();
        request.get("config").fields().forEachRemaining(entry -> config.put(entry.getKey(), entry.getValue().asText()));
        CreateTopicsOptions options = new CreateTopicsOptions().validateOnly(request.get("validate_only").asBoolean());
        return done(admin.createTopics(List.of(topic.configs(config)), options).all().get());
    }

    private static ObjectNode listTopics(Admin admin) throws Exception {
        ObjectNode answer = ClientShell.JSON.createObjectNode();
        ArrayNode names = answer.putArray("topics");
        admin.listTopics().names().get().forEach(names::add);
        return answer;
    }

    private static ObjectNode describeTopic(Admin admin, String name) throws Exception {
        TopicDescription found = admin.describeTopics(List.of(name)).allTopicNames().get().get(name);
        ObjectNode answer = ClientShell.JSON.createObjectNode();
        ArrayNode partitions = answer.putArray("partitions");
        for (TopicPartitionInfo partition : found.partitions()) {
            ArrayNode entry = partitions.addArray();
            entry.add(partition.partition()).add(partition.leader().id());
            ids(entry.addArray(), partition.replicas());
            ids(entry.addArray(), partition.isr());
        }
        return answer;
    }

    private static void ids(ArrayNode into, List<Node> nodes) {
        nodes.forEach(node -> into.add(node.id()));
    }

    private static ObjectNode createPartitions(Admin admin, JsonNode request) throws Exception {
        NewPartitions count = NewPartitions.increaseTo(request.get("count").asInt());
        return done(admin.createPartitions(Map.of(topic(request), count)).all().get());
    }

    private static ConfigResource resource(JsonNode request) {
        boolean broker = request.get("resource").asText().equals("broker");
        ConfigResource.Type type = broker ? ConfigResource.Type.BROKER : ConfigResource.Type.TOPIC;
        return new ConfigResource(type, request.get("name").asText());
    }

    private static ObjectNode describeConfigs(Admin admin, ConfigResource resource) throws Exception {
        ObjectNode answer = ClientShell.JSON.createObjectNode();
        ObjectNode configs = answer.putObject("configs");
        for (ConfigEntry entry : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
            int source = DescribeConfigsResponse.ConfigSource.valueOf(sourceName(entry)).id();
            configs.putArray(entry.name()).add(entry.value()).add(source);
        }
        return answer;
    }

    private static String sourceName(ConfigEntry entry) {
        return switch (entry.source()) {
            case DYNAMIC_TOPIC_CONFIG -> "TOPIC_CONFIG";
            default -> entry.source().name();
        };
    }

    private static ObjectNode alterConfigs(Admin admin, JsonNode request) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        for (JsonNode change : request.get("changes")) {
            ConfigEntry entry = new ConfigEntry(change.get(1).asText(), change.get(2).asText(null));
            changes.add(new AlterConfigOp(entry, AlterConfigOp.OpType.valueOf(change.get(0).asText())));
        }
        return done(admin.incrementalAlterConfigs(Map.of(resource(request), changes)).all().get());
    }

    private static ObjectNode deleteRecords(Admin admin, JsonNode request) throws Exception {
        TopicPartition partition = new TopicPartition(topic(request), request.get("partition").asInt());
        RecordsToDelete before = RecordsToDelete.beforeOffset(request.get("offset").asLong());
        long start = admin.deleteRecords(Map.of(partition, before)).lowWatermarks().get(partition).get().lowWatermark();
        return ClientShell.JSON.createObjectNode().put("low_watermark", start);
    }

    private static ObjectNode describeCluster(Admin admin) throws Exception {
        DescribeClusterResult found = admin.describeCluster();
        ObjectNode answer = ClientShell.JSON.createObjectNode();
        answer.put("cluster_id", found.clusterId().get()).put("controller", found.controller().get().id());
        ArrayNode brokers = answer.putArray("brokers");
        for (Node node : found.nodes().get()) {
            brokers.addArray().add(node.id()).add(node.host()).add(node.port());
        }
        return answer;
    }

    private static ObjectNode logDirs(Admin admin) throws Exception {
        ObjectNode answer = ClientShell.JSON.createObjectNode();
        ObjectNode dirs = answer.putObject("dirs");
        admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1).forEach((path, description) -> {
            ObjectNode sizes = dirs.putObject(path);
            description.replicaInfos().forEach((partition, info) -> sizes.put(partition.toString(), info.size()));
        });
        return answer;
    }

    private static ObjectNode listOffsets(Admin admin, JsonNode request) throws Exception {
        TopicPartition partition = new TopicPartition(topic(request), request.get("partition").asInt());
        long timestamp = request.get("timestamp").asLong();
        OffsetSpec spec = timestamp == -1 ? OffsetSpec.latest()
            : timestamp == -2 ? OffsetSpec.earliest()
            : timestamp == -3 ? OffsetSpec.maxTimestamp()
            : OffsetSpec.forTimestamp(timestamp);
        ListOffsetsResultInfo found = admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get();
        return ClientShell.JSON.createObjectNode().put("offset", found.offset()).put("timestamp", found.timestamp());
    }
}
