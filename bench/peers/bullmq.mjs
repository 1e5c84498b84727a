// BullMQ, told what to do by a plan as JSON: one Queue and one Worker in this process, as its documentation has it.
// The last line on stdout is what came of it. A message of several tasks is an addBulk.
import { Queue, Worker } from "bullmq";

const plan = JSON.parse(process.argv[2]);
const connection = { host: "127.0.0.1", port: plan.port, maxRetriesPerRequest: null };
const name = `bench-${process.pid}`;
const queue = new Queue(name, {
  connection,
  defaultJobOptions: { removeOnComplete: true, removeOnFail: true },
});
const filler = "x".repeat(Math.max(0, plan.payload_bytes - 30));
const now = () => performance.timeOrigin + performance.now();

let enqueued = 0, acked = 0, enqueuedLast = 0, ackedLast = 0, producing = true;
const delivery = [], enqueue = [];

const worker = new Worker(name, async (job) => { delivery.push(now() - job.data.sent); }, {
  connection,
  concurrency: plan.outstanding * plan.batch,
});
await worker.waitUntilReady();
await queue.waitUntilReady();

const start = now();
const end = start + plan.seconds * 1000;
worker.on("completed", () => {
  acked += 1;
  ackedLast = now();
});

async function send(tasks, from) {
  const data = { sent: from, filler };
  if (tasks === 1) await queue.add("task", data);
  else await queue.addBulk(Array.from({ length: tasks }, () => ({ name: "task", data })));
  enqueued += tasks;
  enqueuedLast = now();
  for (let n = 0; n < tasks; n++) enqueue.push(enqueuedLast - from);
}

if (plan.rate) {
  const sending = [];
  for (let n = 0; ; n++) {
    const due = start + (n * plan.batch * 1000) / plan.rate;
    if (due >= end) break;
    const wait = due - now();
    // One that fell due while the timer slept counts from when it woke; one that was held up, from when it was due.
    let from = due;
    if (wait > 0) {
      await new Promise((wake) => setTimeout(wake, wait));
      from = now();
    }
    sending.push(send(plan.batch, from));
  }
  await Promise.all(sending);
} else {
  const side = async () => { while (now() < end) await send(plan.batch, now()); };
  await Promise.all(Array.from({ length: plan.outstanding }, side));
}
producing = false;

let before = -1, since = now();
while (acked < enqueued && now() - since < 15000) {
  if (acked !== before) [before, since] = [acked, now()];
  await new Promise((wake) => setTimeout(wake, 5));
}

function quantiles(times) {
  if (times.length === 0) return null;
  const sorted = Float64Array.from(times).sort();
  const at = (part) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))];
  const mean = times.reduce((sum, time) => sum + time, 0) / times.length;
  return {
    count: sorted.length, min: sorted[0], mean, p50: at(0.5), p90: at(0.9), p99: at(0.99), p99_9: at(0.999),
    max: sorted[sorted.length - 1],
  };
}

const seconds = (last) => Math.max(0.001, (last - start) / 1000);
console.log(JSON.stringify({
  enqueued, received: delivery.length, acked, unfinished: enqueued - acked,
  seconds: seconds(Math.max(enqueuedLast, ackedLast)),
  enqueued_per_s: enqueued / seconds(enqueuedLast),
  acked_per_s: acked / seconds(ackedLast),
  latency_ms: { enqueue: quantiles(enqueue), delivery: quantiles(delivery), ack: null },
}));
await worker.close(true);
await queue.close();
process.exit(0);
