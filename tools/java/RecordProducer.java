import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's Java producer, told what to do by JSON on standard input: per line one producer, "config" and "steps".
 *
 * A step is {"do": "init" | "begin" | "flush" | "commit" | "abort"} or {"do": "send", "topic", "partition", "timestamp",
 * "key", "value", "headers": [[name, value], ...]} with base64 for bytes. Prints the offset of each record sent.
 */
public final class RecordProducer {
    private static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    private static ProducerRecord<byte[], byte[]> record(JsonNode step) {
        String topic = step.get("topic").asText();
        Long timestamp = step.hasNonNull("timestamp") ? step.get("timestamp").asLong() : null;
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
            topic, step.get("partition").asInt(), timestamp, bytes(step.get("key")), bytes(step.get("value")));
        for (JsonNode header : step.path("headers")) {
            record.headers().add(header.get(0).asText(), bytes(header.get(1)));
        }
        return record;
    }

    private static void run(JsonNode plan) throws Exception {
        Properties config = new Properties();
        plan.get("config").fields().forEachRemaining(entry -> config.put(entry.getKey(), entry.getValue().asText()));
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        ByteArraySerializer plain = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config, plain, plain)) {
            for (JsonNode step : plan.get("steps")) {
                switch (step.get("do").asText()) {
                    case "init" -> producer.initTransactions();
                    case "begin" -> producer.beginTransaction();
                    case "send" -> sent.add(producer.send(record(step)));
                    case "flush" -> producer.flush();
                    case "commit" -> producer.commitTransaction();
                    case "abort" -> producer.abortTransaction();
                    default -> throw new IllegalArgumentException("no such step: " + step);
                }
            }
        }
        for (Future<RecordMetadata> metadata : sent) {
            System.out.println(metadata.get().offset());
        }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ObjectMapper json = new ObjectMapper();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            run(json.readTree(line));
        }
    }
}
