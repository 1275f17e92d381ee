import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.TreeMap;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Kafka's own generated message classes as a service: a JSON question per line in, a JSON answer per line out.
 *
 * {"op":"list"} names the messages with their versions; {"op":"encode","message","version","json"} gives "hex";
 * {"op":"decode","message","version","hex"} gives "json", "left", the number of bytes that were not read, and "hex", what
 * Kafka writes for what it read (its JSON leaves out the bytes of record batches). What Kafka refuses is answered with
 * "error", and the process goes on.
 */
public final class WireOracle {
    private static final String CONVERTER = "JsonConverter";
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();

    /** One message: its class and the ways between it and JSON. */
    private record Codec(Class<?> data, Method read, Method write) {
        Message blank() throws ReflectiveOperationException {
            return (Message) data.getConstructor().newInstance();
        }
    }

    private final Map<String, String> converters = new TreeMap<>();
    private final Map<String, Codec> codecs = new HashMap<>();

    private WireOracle() throws Exception {
        for (String path : System.getProperty("java.class.path").split(File.pathSeparator)) {
            if (path.endsWith(".jar") && new File(path).getName().startsWith("kafka-")) {
                findConverters(path);
            }
        }
    }

    private void findConverters(String jarPath) throws Exception {
        try (JarFile jar = new JarFile(jarPath)) {
            for (JarEntry entry : (Iterable<JarEntry>) jar.stream()::iterator) {
                String path = entry.getName();
                if (path.endsWith(CONVERTER + ".class") && !path.contains("$")) {
                    String name = path.substring(0, path.length() - ".class".length()).replace('/', '.');
                    String data = name.substring(name.lastIndexOf('.') + 1, name.length() - CONVERTER.length());
                    converters.put(data.replaceFirst("(Request|Response|Header)Data$", "$1"), name);
                }
            }
        }
    }

    private Codec codec(String message) throws ReflectiveOperationException {
        Codec known = codecs.get(message);
        if (known != null) {
            return known;
        }
        String name = converters.get(message);
        if (name == null) {
            throw new IllegalArgumentException("no such message: " + message);
        }
        Class<?> converter = Class.forName(name);
        Class<?> data = Class.forName(name.substring(0, name.length() - CONVERTER.length()));
        Method read = converter.getMethod("read", JsonNode.class, short.class);
        Method write = converter.getMethod("write", data, short.class, boolean.class);
        Codec made = new Codec(data, read, write);
        codecs.put(message, made);
        return made;
    }

    private ArrayNode list() throws ReflectiveOperationException {
        ArrayNode messages = JSON.createArrayNode();
        for (String name : converters.keySet()) {
            Message blank = codec(name).blank();
            messages.addObject()
                .put("message", name)
                .put("lowest", blank.lowestSupportedVersion())
                .put("highest", blank.highestSupportedVersion());
        }
        return messages;
    }

    private Message fromJson(String message, short version, JsonNode json) throws ReflectiveOperationException {
        return (Message) codec(message).read().invoke(null, json, version);
    }

    private static String encode(Message data, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(data.size(cache, version));
        data.write(new ByteBufferAccessor(buffer), cache, version);
        return HEX.formatHex(buffer.array(), 0, buffer.position());
    }

    private void decode(String message, short version, String hex, ObjectNode answer) throws ReflectiveOperationException {
        Codec codec = codec(message);
        Message data = codec.blank();
        ByteBufferAccessor bytes = new ByteBufferAccessor(ByteBuffer.wrap(HEX.parseHex(hex)));
        data.read(bytes, version);
        answer.set("json", (JsonNode) codec.write().invoke(null, data, version, true));
        answer.put("left", bytes.remaining());
        answer.put("hex", encode(data, version));
    }

    private ObjectNode answer(JsonNode question) {
        ObjectNode answer = JSON.createObjectNode();
        try {
            String message = question.path("message").asText();
            short version = (short) question.path("version").asInt();
            switch (question.path("op").asText()) {
                case "list" -> answer.set("messages", list());
                case "encode" -> answer.put("hex", encode(fromJson(message, version, question.get("json")), version));
                case "decode" -> decode(message, version, question.get("hex").asText(), answer);
                default -> throw new IllegalArgumentException("no such op: " + question.path("op"));
            }
        } catch (Exception e) {
            Throwable cause = e.getCause() == null ? e : e.getCause();
            answer.removeAll();
            answer.put("error", cause.toString());
        }
        return answer;
    }

    public static void main(String[] args) throws Exception {
        WireOracle oracle = new WireOracle();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(JSON.writeValueAsString(oracle.answer(JSON.readTree(line))));
            out.flush();
        }
    }
}
