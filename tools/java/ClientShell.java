import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's Java clients and tools, asked by JSON: one request per line of standard input, one answer per line of output.
 *
 * "tool" runs the main of a tool with its streams captured; "produce" and "consume" use the clients without a group;
 * all else is AdminCalls. Bytes are base64. What a client throws is answered as {"error": Kafka's code, "message"}.
 */
public final class ClientShell {
    static final ObjectMapper JSON = new ObjectMapper();

    /** What a tool's exit becomes, so that it ends the tool and not this process. */
    private static final class ToolEnded extends RuntimeException {
        private static final long serialVersionUID = 1;
    }

    private static Integer exitStatus;

    static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    static String text(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }

    private static Properties config(JsonNode request) {
        Properties config = new Properties();
        config.put("bootstrap.servers", request.get("bootstrap").asText());
        request.path("config").fields().forEachRemaining(entry -> config.put(entry.getKey(), entry.getValue().asText()));
        return config;
    }

    private static ObjectNode produce(JsonNode request) throws Exception {
        Properties config = config(request);
        config.put("compression.type", request.get("codec").asText());
        config.put("acks", request.get("acks").asText());
        config.put("enable.idempotence", request.get("idempotent").asText());
        config.put("linger.ms", request.get("linger_ms").asText());
        config.put("max.block.ms", "1500");
        config.put("max.request.size", "4000000");
        ByteArraySerializer plain = new ByteArraySerializer();
        ArrayNode offsets = JSON.createArrayNode();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config, plain, plain)) {
            for (JsonNode given : request.get("records")) {
                sent.add(producer.send(record(request.get("topic").asText(), given)));
            }
            producer.flush();
            for (Future<RecordMetadata> future : sent) {
                offsets.add(future.get().hasOffset() ? future.get().offset() : -1);
            }
        }
        ObjectNode answer = JSON.createObjectNode();
        answer.set("offsets", offsets);
        return answer;
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, JsonNode given) {
        Long timestamp = given.hasNonNull("timestamp") ? given.get("timestamp").asLong() : null;
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
            topic, given.get("partition").asInt(), timestamp, bytes(given.get("key")), bytes(given.get("value")));
        for (JsonNode header : given.path("headers")) {
            record.headers().add(header.get(0).asText(), bytes(header.get(1)));
        }
        return record;
    }

    private static ObjectNode consume(JsonNode request) {
        Properties config = config(request);
        config.put("auto.offset.reset", request.get("reset").asText());
        config.put("isolation.level", request.get("isolation").asText());
        config.put("max.partition.fetch.bytes", request.get("max_bytes").asText());
        config.put("fetch.max.wait.ms", request.get("max_wait_ms").asText());
        config.put("allow.auto.create.topics", "false");
        ByteArrayDeserializer plain = new ByteArrayDeserializer();
        ArrayNode records = JSON.createArrayNode();
        long giveUpAt = System.nanoTime() + request.get("deadline_ms").asLong() * 1_000_000;
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config, plain, plain);
        try {
            seek(consumer, request.get("partitions"));
            while (records.size() < request.get("count").asInt()) {
                if (System.nanoTime() > giveUpAt) {
                    throw new IllegalStateException("only " + records.size() + " records until the deadline");
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    records.add(json(record));
                }
            }
        } finally {
            // It would wait for the fetch that is under way, which may be a long one.
            consumer.close(Duration.ZERO);
        }
        ObjectNode answer = JSON.createObjectNode();
        answer.set("records", records);
        return answer;
    }

    private static void seek(KafkaConsumer<byte[], byte[]> consumer, JsonNode places) {
        Map<TopicPartition, Long> starts = new LinkedHashMap<>();
        for (JsonNode place : places) {
            starts.put(new TopicPartition(place.get(0).asText(), place.get(1).asInt()), place.get(2).asLong());
        }
        consumer.assign(starts.keySet());
        starts.forEach((partition, start) -> {
            if (start == -2) {
                consumer.seekToBeginning(List.of(partition));
            } else if (start == -1) {
                consumer.seekToEnd(List.of(partition));
            } else {
                consumer.seek(partition, start);
            }
        });
    }

    private static ObjectNode json(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode node = JSON.createObjectNode();
        node.put("topic", record.topic()).put("partition", record.partition()).put("offset", record.offset());
        node.put("timestamp", record.timestamp()).put("key", text(record.key())).put("value", text(record.value()));
        node.put("log_append_time", record.timestampType() == TimestampType.LOG_APPEND_TIME);
        ArrayNode headers = node.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(text(header.value()));
        }
        return node;
    }

    private static ObjectNode tool(JsonNode request) throws Exception {
        List<String> arguments = new ArrayList<>();
        request.get("arguments").forEach(argument -> arguments.add(argument.asText()));
        Class<?> main = Class.forName(request.get("main").asText());
        forgetEarlierRun(main);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        PrintStream ourOut = System.out;
        PrintStream ourErr = System.err;
        InputStream ourIn = System.in;
        exitStatus = null;
        int status = 0;
        try {
            System.setIn(new ByteArrayInputStream(request.get("given").asText().getBytes(StandardCharsets.UTF_8)));
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            run(main, arguments.toArray(new String[0]));
        } catch (InvocationTargetException thrown) {
            if (exitStatus == null) {
                thrown.getCause().printStackTrace(System.err);
                status = 1;
            }
        } finally {
            System.setOut(ourOut);
            System.setErr(ourErr);
            System.setIn(ourIn);
        }
        ObjectNode answer = JSON.createObjectNode();
        answer.put("status", exitStatus == null ? status : exitStatus);
        return answer.put("out", out.toString(StandardCharsets.UTF_8)).put("err", err.toString(StandardCharsets.UTF_8));
    }

    /** Scala's console writes where it found System.out at its start, unless it is told otherwise. */
    private static void run(Class<?> main, String[] arguments) throws Exception {
        Object[] failed = new Object[1];
        scala.Console.withOut(System.out, () -> scala.Console.withErr(System.err, () -> {
            try {
                main.getMethod("main", String[].class).invoke(null, (Object) arguments);
            } catch (ReflectiveOperationException thrown) {
                failed[0] = thrown;
            }
            return null;
        }));
        if (failed[0] != null) {
            throw (Exception) failed[0];
        }
    }

    /** The console consumer counts its messages in a static field: its authors give it a JVM for each run. */
    private static void forgetEarlierRun(Class<?> main) throws ReflectiveOperationException {
        for (Field field : main.getDeclaredFields()) {
            if (field.getName().equals("messageCount")) {
                field.setAccessible(true);
                field.setInt(null, 0);
            }
        }
    }

    private static void exitsEndToolsOnly() {
        Exit.Procedure procedure = (status, message) -> {
            if (exitStatus == null) {
                exitStatus = status;
                if (message != null) {
                    System.err.println(message);
                }
            }
            throw new ToolEnded();
        };
        Exit.setExitProcedure(procedure);
        Exit.setHaltProcedure(procedure);
        Exit.setShutdownHookAdder((name, hook) -> { });
    }

    private static ObjectNode answer(JsonNode request) throws Exception {
        return switch (request.get("op").asText()) {
            case "tool" -> tool(request);
            case "produce" -> produce(request);
            case "consume" -> consume(request);
            default -> AdminCalls.answer(request);
        };
    }

    /** The code of the deepest cause that Kafka has a code for: a timeout is often only the last thing that happened. */
    static ObjectNode error(Throwable thrown) {
        Errors found = Errors.UNKNOWN_SERVER_ERROR;
        for (Throwable cause = thrown; cause != null; cause = cause.getCause()) {
            boolean outOfRange = cause instanceof OffsetOutOfRangeException;
            Errors here = outOfRange ? Errors.OFFSET_OUT_OF_RANGE : Errors.forException(cause);
            found = here == Errors.UNKNOWN_SERVER_ERROR ? found : here;
        }
        Throwable shown = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
        return JSON.createObjectNode().put("error", found.code()).put("message", String.valueOf(shown));
    }

    public static void main(String[] args) throws Exception {
        exitsEndToolsOnly();
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer;
            try {
                answer = answer(JSON.readTree(line));
            } catch (Exception thrown) {
                answer = error(thrown);
            }
            answers.println(answer);
            answers.flush();
        }
    }
}
