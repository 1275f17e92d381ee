// kafkajs, asked by JSON: one request per line of standard input, one answer per line of standard output.
//
// Members of groups live in this process until they leave; "crash" ends the process as a kill would. Bytes are base64.
// What the client throws is answered as {"error": Kafka's code, "message": text}.
"use strict";

const { createRequire } = require("node:module");
const readline = require("node:readline");

// The first argument is the directory into which npm installed kafkajs.
const installed = createRequire(`${process.argv[2]}/`);
const { AssignerProtocol, CompressionTypes, Kafka, logLevel } = installed("kafkajs");

const members = new Map();
let nextMember = 0;

const bytes = (text) => (text === null ? null : Buffer.from(text, "base64"));
const text = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString("base64"));

function client(request) {
  const retry = { retries: 20, initialRetryTime: 20, maxRetryTime: 200 };
  return new Kafka({ clientId: "conformance", brokers: [request.bootstrap], logLevel: logLevel.NOTHING, retry });
}

async function withAdmin(request, work) {
  const admin = client(request).admin();
  await admin.connect();
  try {
    return await work(admin);
  } finally {
    await admin.disconnect();
  }
}

async function produce(request) {
  const producer = client(request).producer({
    idempotent: request.idempotent,
    allowAutoTopicCreation: false,
    maxInFlightRequests: 1,
  });
  await producer.connect();
  try {
    const answers = await producer.send({
      topic: request.topic,
      acks: request.acks === "all" ? -1 : Number(request.acks),
      compression: request.codec === "gzip" ? CompressionTypes.GZIP : CompressionTypes.None,
      messages: request.records.map((record) => ({
        partition: record.partition,
        key: bytes(record.key),
        value: bytes(record.value),
        headers: Object.fromEntries(record.headers.map(([name, value]) => [name, bytes(value)])),
        timestamp: record.timestamp === null ? undefined : String(record.timestamp),
      })),
    });
    return { offsets: answers.map((answer) => Number(answer.baseOffset)) };
  } finally {
    await producer.disconnect();
  }
}

// A member keeps what it has read until it is asked; its share is what it was assigned when it last joined.
async function join(request) {
  const consumer = client(request).consumer({
    groupId: request.group,
    sessionTimeout: request.session_ms,
    rebalanceTimeout: request.session_ms,
    heartbeatInterval: request.heartbeat_ms,
    metadataMaxAge: request.metadata_max_age_ms,
    maxWaitTimeInMs: 100,
    allowAutoTopicCreation: false,
  });
  const member = { consumer, group: request.group, share: [], revoked: [], read: [], error: null };
  const { GROUP_JOIN, REBALANCING, CRASH } = consumer.events;
  consumer.on(GROUP_JOIN, (event) => {
    member.share = Object.entries(event.payload.memberAssignment).flatMap(([topic, numbers]) =>
      numbers.map((number) => [topic, number]),
    );
  });
  consumer.on(REBALANCING, () => {
    member.revoked.push(member.share);
    member.share = [];
  });
  consumer.on(CRASH, (event) => {
    if (!event.payload.restart) member.error = event.payload.error;
  });
  await consumer.connect();
  await consumer.subscribe({ topics: request.topics, fromBeginning: request.reset === "earliest" });
  await consumer.run({
    autoCommit: request.auto_commit,
    eachMessage: async ({ topic, partition, message }) => {
      member.read.push({
        topic,
        partition,
        offset: Number(message.offset),
        timestamp: Number(message.timestamp),
        key: text(message.key),
        value: text(message.value),
        headers: Object.entries(message.headers).map(([name, value]) => [name, text(value)]),
      });
    },
  });
  members.set(++nextMember, member);
  return { member: nextMember };
}

function news(member) {
  const { share, revoked, read, error } = member;
  member.read = [];
  return { share, revoked, read, failed: error === null ? null : failure(error) };
}

async function commit(request, member) {
  const offsets = request.offsets.map(([topic, partition, offset]) => ({ topic, partition, offset: String(offset) }));
  await member.consumer.commitOffsets(offsets);
  return {};
}

async function leave(request, member) {
  members.delete(request.member);
  await member.consumer.disconnect();
  return {};
}

const places = (request) => [{ topic: request.topic, partitions: [request.partition] }];

const memberCalls = {
  news: (request, member) => news(member),
  commit,
  leave,
  pause: (request, member) => (member.consumer.pause(places(request)), {}),
  resume: (request, member) => (member.consumer.resume(places(request)), {}),
};

async function describeGroup(request, admin) {
  const { groups } = await admin.describeGroups([request.group]);
  const [group] = groups;
  const shown = group.members.map((member) => ({
    client_id: member.clientId,
    host: member.clientHost,
    parts: Object.entries(AssignerProtocol.MemberAssignment.decode(member.memberAssignment)?.assignment ?? {}),
  }));
  return { state: group.state, protocol_type: group.protocolType, protocol: group.protocol, members: shown };
}

async function groupOffsets(request, admin) {
  const topics = request.topics.length > 0 ? { topics: request.topics } : {};
  const found = await admin.fetchOffsets({ groupId: request.group, ...topics });
  return {
    offsets: found.flatMap(({ topic, partitions }) =>
      partitions.map(({ partition, offset }) => [topic, partition, Number(offset)]),
    ),
  };
}

async function alterGroupOffsets(request, admin) {
  for (const topic of new Set(request.offsets.map(([topic]) => topic))) {
    const partitions = request.offsets
      .filter(([name]) => name === topic)
      .map(([, partition, offset]) => ({ partition, offset: String(offset) }));
    await admin.setOffsets({ groupId: request.group, topic, partitions });
  }
  return {};
}

async function createTopic(request, admin) {
  const configEntries = Object.entries(request.config).map(([name, value]) => ({ name, value }));
  const topic = { topic: request.topic, numPartitions: request.partitions, configEntries };
  await admin.createTopics({ topics: [{ ...topic, replicationFactor: request.replication_factor }] });
  return {};
}

async function describeTopic(request, admin) {
  const { topics } = await admin.fetchTopicMetadata({ topics: [request.topic] });
  return {
    partitions: topics[0].partitions.map((found) => [found.partitionId, found.leader, found.replicas, found.isr]),
  };
}

async function listOffsets(request, admin) {
  const found =
    request.timestamp < 0
      ? await admin.fetchTopicOffsets(request.topic)
      : await admin.fetchTopicOffsetsByTimestamp(request.topic, request.timestamp);
  const entry = found.find(({ partition }) => partition === request.partition);
  return { offset: Number(request.timestamp === -2 ? entry.low : entry.offset), timestamp: -1 };
}

const adminCalls = {
  list_groups: async (request, admin) => {
    const { groups } = await admin.listGroups();
    return { groups: groups.map(({ groupId, protocolType }) => [groupId, protocolType]) };
  },
  describe_group: describeGroup,
  delete_group: async (request, admin) => (await admin.deleteGroups([request.group]), {}),
  group_offsets: groupOffsets,
  alter_group_offsets: alterGroupOffsets,
  create_topic: createTopic,
  delete_topic: async (request, admin) => (await admin.deleteTopics({ topics: [request.topic] }), {}),
  list_topics: async (request, admin) => ({ topics: await admin.listTopics() }),
  describe_topic: describeTopic,
  list_offsets: listOffsets,
};

async function answer(request) {
  if (request.op === "produce") return produce(request);
  if (request.op === "join") return join(request);
  if (request.op === "crash") return process.kill(process.pid, "SIGKILL");
  if (request.op in memberCalls) return memberCalls[request.op](request, members.get(request.member));
  return withAdmin(request, (admin) => adminCalls[request.op](request, admin));
}

// Some errors carry others: what failed for each group, or what retrying ended with.
function failure(error) {
  const inner = error.groups?.[0]?.error ?? error.errors?.[0] ?? error.cause;
  if (error.code === undefined && inner !== undefined) return failure(inner);
  return { error: typeof error.code === "number" ? error.code : -1, message: String(error.stack) };
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let found;
    try {
      found = await answer(JSON.parse(line));
    } catch (error) {
      found = failure(error);
    }
    process.stdout.write(JSON.stringify(found) + "\n");
  }
  process.exit(0); // members that a failed case left behind end here
}

main();
