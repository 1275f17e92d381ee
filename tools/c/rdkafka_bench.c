/*
 * The measuring client of bench/broker.py and bench/cluster.py: librdkafka without a scripting language above it, so
 * that the broker and not the client is what a run waits for.
 *
 *   rdkafka_bench produce BOOTSTRAP TOPIC PARTITIONS RECORDS SIZE [name=value ...]
 *   rdkafka_bench consume BOOTSTRAP TOPIC PARTITIONS RECORDS SIZE [name=value ...]
 *   rdkafka_bench sync    BOOTSTRAP TOPIC PARTITIONS RECORDS SIZE [name=value ...]
 *   rdkafka_bench gap     BOOTSTRAP TOPIC PARTITIONS RECORDS SIZE [name=value ...]
 *
 * name=value are librdkafka's settings. The answer is one JSON object on stdout; what goes wrong is a sentence on
 * stderr and status 1. Every run checks what it did: the topic holds as many records as were acknowledged, the
 * offsets that are read have no gap.
 *
 * `gap` sends RECORDS a second to each partition until its stdin ends. A line on stdin is a question: the answer, one
 * JSON object, comes when each partition has acknowledged a record that was sent after it, and tells the longest time
 * between two acknowledgements of each partition since the answer before.
 *
 * It links the library of the confluent-kafka wheel, which comes without headers: what is used of its public
 * interface is declared here.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_topic_conf_s rd_kafka_topic_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct {
    int err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *private;
} rd_kafka_message_t;

enum { PRODUCER, CONSUMER };
enum { ANY_PARTITION = -1, OFFSET_BEGINNING = -2, QUEUE_FULL = -184, CONF_OK = 0 };

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *name, const char *value, char *error, size_t error_size);
void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *, void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
rd_kafka_t *rd_kafka_new(int kind, rd_kafka_conf_t *, char *error, size_t error_size);
rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *topic, rd_kafka_topic_conf_t *);
int rd_kafka_produce(rd_kafka_topic_t *, int32_t partition, int flags, void *payload, size_t size, const void *key,
                     size_t key_size, void *opaque);
int rd_kafka_poll(rd_kafka_t *, int timeout_ms);
int rd_kafka_flush(rd_kafka_t *, int timeout_ms);
int rd_kafka_last_error(void);
const char *rd_kafka_err2str(int error);
int rd_kafka_query_watermark_offsets(rd_kafka_t *, const char *topic, int32_t partition, int64_t *low, int64_t *high,
                                     int timeout_ms);
rd_kafka_queue_t *rd_kafka_queue_new(rd_kafka_t *);
int rd_kafka_consume_start_queue(rd_kafka_topic_t *, int32_t partition, int64_t offset, rd_kafka_queue_t *);
ssize_t rd_kafka_consume_batch_queue(rd_kafka_queue_t *, int timeout_ms, rd_kafka_message_t **, size_t count);
void rd_kafka_message_destroy(rd_kafka_message_t *);
const char *rd_kafka_version_str(void);

#define DEADLINE_MS 60000
#define RETRY_MS 20
#define BATCH 10000
#define UNMEASURED_SYNC 1000

static const char *topic_name;
static int partitions;
static int64_t records;
static size_t size;
static int64_t acknowledged;

/* What `gap` knows of a partition. A record carries the number of the question it was sent after. */
struct partition {
    int64_t last_ns, longest_ns;
    intptr_t reached;
};
static struct partition *seen_of;

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client, (void)opaque;
    if (message->err)
        fail("a record was not acknowledged: %s", rd_kafka_err2str(message->err));
    acknowledged++;
    if (seen_of) {
        struct partition *seen = &seen_of[message->partition];
        int64_t now = now_ns();
        if (seen->last_ns && now - seen->last_ns > seen->longest_ns)
            seen->longest_ns = now - seen->last_ns;
        seen->last_ns = now;
        seen->reached = (intptr_t)message->private;
    }
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char error[512];
    if (rd_kafka_conf_set(conf, name, value, error, sizeof error) != CONF_OK)
        fail("%s", error);
}

static rd_kafka_t *connect_to(const char *bootstrap, int kind, char **settings, int count) {
    char error[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", bootstrap);
    for (int i = 0; i < count; i++) {
        char *equals = strchr(settings[i], '=');
        if (!equals)
            fail("%s: a setting is name=value", settings[i]);
        *equals = 0;
        set(conf, settings[i], equals + 1);
    }
    if (kind == PRODUCER)
        rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_t *client = rd_kafka_new(kind, conf, error, sizeof error);
    if (!client)
        fail("%s", error);
    return client;
}

/* How many records a partition holds. Right after a topic was made, its leader may not know yet that it is it. */
static int64_t held_by(rd_kafka_t *client, int partition) {
    int64_t low, high, give_up_at = now_ns() + DEADLINE_MS * 1000000LL;
    for (;;) {
        int err = rd_kafka_query_watermark_offsets(client, topic_name, partition, &low, &high, DEADLINE_MS);
        if (!err)
            return high - low;
        if (now_ns() > give_up_at)
            fail("the offsets of %s-%d: %s", topic_name, partition, rd_kafka_err2str(err));
        usleep(RETRY_MS * 1000);
    }
}

/* How many records the topic holds; asked before a run too, so that connections and metadata are there. */
static int64_t held(rd_kafka_t *client) {
    int64_t sum = 0;
    for (int partition = 0; partition < partitions; partition++)
        sum += held_by(client, partition);
    return sum;
}

static void produce_to(rd_kafka_t *client, rd_kafka_topic_t *topic, int partition, char *payload, void *private) {
    while (rd_kafka_produce(topic, partition, 0, payload, size, NULL, 0, private) != 0) {
        if (rd_kafka_last_error() != QUEUE_FULL)
            fail("produce: %s", rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(client, 1);
    }
}

static void produce_one(rd_kafka_t *client, rd_kafka_topic_t *topic, char *payload) {
    produce_to(client, topic, ANY_PARTITION, payload, NULL);
}

static void flush(rd_kafka_t *client) {
    int err = rd_kafka_flush(client, DEADLINE_MS);
    if (err)
        fail("flush: %s", rd_kafka_err2str(err));
}

/* Every record is in the topic, and once. */
static void check_stored(rd_kafka_t *client, int64_t before, int64_t sent) {
    int64_t stored = held(client) - before;
    if (stored != sent)
        fail("%lld records were acknowledged and %lld stored", (long long)sent, (long long)stored);
}

static void produce(rd_kafka_t *client, rd_kafka_topic_t *topic) {
    char *payload = malloc(size + 1);
    memset(payload, 'x', size);
    int64_t before = held(client);
    int64_t start = now_ns();
    for (int64_t n = 0; n < records; n++) {
        produce_one(client, topic, payload);
        if (n % BATCH == 0)
            rd_kafka_poll(client, 0);
    }
    flush(client);
    int64_t took = now_ns() - start;
    check_stored(client, before, records);
    printf("{\"seconds\": %.6f, \"librdkafka\": \"%s\"}\n", took / 1e9, rd_kafka_version_str());
}

static void take(rd_kafka_message_t *message, int64_t *expected) {
    if (message->err)
        fail("consume: %s", rd_kafka_err2str(message->err));
    if (message->offset != expected[message->partition] || message->len != size)
        fail("partition %d: offset %lld with %zu bytes came where offset %lld with %zu was due", message->partition,
             (long long)message->offset, message->len, (long long)expected[message->partition], size);
    expected[message->partition]++;
    rd_kafka_message_destroy(message);
}

static void consume(rd_kafka_t *client, rd_kafka_topic_t *topic) {
    static rd_kafka_message_t *messages[BATCH];
    int64_t *expected = calloc(partitions, sizeof *expected);
    if (held(client) < records)
        fail("the topic holds fewer than %lld records", (long long)records);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(client);
    int64_t start = now_ns();
    for (int partition = 0; partition < partitions; partition++)
        if (rd_kafka_consume_start_queue(topic, partition, OFFSET_BEGINNING, queue) != 0)
            fail("consume: %s", rd_kafka_err2str(rd_kafka_last_error()));
    int64_t seen = 0, last_seen = start;
    while (seen < records) {
        ssize_t count = rd_kafka_consume_batch_queue(queue, 5, messages, BATCH);
        if (count < 0)
            fail("consume: %s", rd_kafka_err2str(rd_kafka_last_error()));
        int64_t now = now_ns();
        if (count > 0)
            last_seen = now;
        else if (now - last_seen > DEADLINE_MS * 1000000LL)
            fail("only %lld of %lld records came", (long long)seen, (long long)records);
        for (ssize_t i = 0; i < count; i++)
            take(messages[i], expected);
        seen += count;
    }
    printf("{\"seconds\": %.6f, \"librdkafka\": \"%s\"}\n", (now_ns() - start) / 1e9, rd_kafka_version_str());
}

static int by_size(const void *one, const void *other) {
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

/* One record, wait for its acknowledgement, the next; the first ones are not measured. */
static void produce_sync(rd_kafka_t *client, rd_kafka_topic_t *topic) {
    char *payload = malloc(size + 1);
    memset(payload, 'x', size);
    int64_t *took = calloc(records, sizeof *took);
    held(client);
    for (int64_t n = -UNMEASURED_SYNC; n < records; n++) {
        int64_t before = acknowledged, start = now_ns();
        produce_one(client, topic, payload);
        while (acknowledged == before)
            rd_kafka_poll(client, 1000);
        if (n >= 0)
            took[n] = now_ns() - start;
    }
    qsort(took, records, sizeof *took, by_size);
    printf("{\"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f, \"librdkafka\": \"%s\"}\n",
           took[records / 2] / 1e3, took[records * 99 / 100] / 1e3, took[records - 1] / 1e3, rd_kafka_version_str());
}

/* -1 at the end of stdin, 1 for a line, 0 if nothing came. */
static int asked(void) {
    char line[64];
    struct pollfd input = {.fd = 0, .events = POLLIN};
    if (poll(&input, 1, 0) == 0)
        return 0;
    return read(0, line, sizeof line) > 0 ? 1 : -1;
}

static int is_reached(intptr_t question) {
    for (int partition = 0; partition < partitions; partition++)
        if (seen_of[partition].reached < question)
            return 0;
    return 1;
}

static void tell_gaps(void) {
    printf("{\"longest_ms\": [");
    for (int partition = 0; partition < partitions; partition++) {
        printf("%s%.3f", partition ? ", " : "", seen_of[partition].longest_ns / 1e6);
        seen_of[partition].longest_ns = 0;
    }
    printf("], \"librdkafka\": \"%s\"}\n", rd_kafka_version_str());
    fflush(stdout);
}

/* A round of records, one to each partition, whenever one is due; those that fell due meanwhile are left out. */
static void produce_steadily(rd_kafka_t *client, rd_kafka_topic_t *topic) {
    char *payload = malloc(size + 1);
    memset(payload, 'x', size);
    int64_t before = held(client), sent = 0, step_ns = 1000000000LL / records, due = now_ns(), asked_at = due;
    intptr_t question = 0, answered = 0;
    int word;
    seen_of = calloc(partitions, sizeof *seen_of);
    while ((word = asked()) >= 0) {
        if (word > 0)
            question++, asked_at = now_ns();
        for (int partition = 0; partition < partitions; partition++, sent++)
            produce_to(client, topic, partition, payload, (void *)question);
        due = due + step_ns > now_ns() ? due + step_ns : now_ns();
        do
            rd_kafka_poll(client, 1);
        while (now_ns() < due);
        if (question > answered && is_reached(question)) {
            tell_gaps();
            answered = question;
        }
        if (now_ns() - asked_at > DEADLINE_MS * 1000000LL)
            fail(question > answered ? "a partition acknowledged nothing in time" : "nothing was asked in time");
    }
    flush(client);
    if (acknowledged != sent)
        fail("%lld records were sent and %lld acknowledged", (long long)sent, (long long)acknowledged);
    check_stored(client, before, sent);
}

int main(int argc, char **argv) {
    if (argc < 7)
        fail("usage: rdkafka_bench produce|consume|sync|gap BOOTSTRAP TOPIC PARTITIONS RECORDS SIZE [name=value ...]");
    const char *mode = argv[1];
    topic_name = argv[3];
    partitions = atoi(argv[4]);
    records = atoll(argv[5]);
    size = atoll(argv[6]);
    rd_kafka_t *client = connect_to(argv[2], strcmp(mode, "consume") ? PRODUCER : CONSUMER, argv + 7, argc - 7);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, topic_name, NULL);
    if (!strcmp(mode, "produce"))
        produce(client, topic);
    else if (!strcmp(mode, "consume"))
        consume(client, topic);
    else if (!strcmp(mode, "sync"))
        produce_sync(client, topic);
    else if (!strcmp(mode, "gap"))
        produce_steadily(client, topic);
    else
        fail("%s is none of produce, consume, sync and gap", mode);
    return 0; /* the process ends and takes the client with it; to tear it down would only cost time */
}
