//! NATS JetStream: publishes with their acks, pulls, and acks that the server answers (double acks): without an answer
//! nobody knows whether a message comes again.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, anyhow};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, Context, Message, consumer, stream};
use futures::StreamExt as _;
use futures::future::try_join_all;

use super::{Producer, Worker, drive};
use crate::load::{Plan, Summary};

const NAME: &str = "bench";
/// How long a group of three may take to elect its leader.
const READY_PATIENCE: Duration = Duration::from_secs(60);

/// One connection on each side, with all messages in flight on it.
pub(crate) async fn run(addresses: &[SocketAddr], plan: Plan) -> Result<Summary> {
    let urls: Vec<String> = addresses.iter().map(|address| format!("nats://{address}")).collect();
    let publishing = jetstream::new(async_nats::connect(urls[0].as_str()).await?);
    let pulling = jetstream::new(async_nats::connect(urls[0].as_str()).await?);
    let stream = until_ready(&pulling, addresses.len()).await?;
    let producers = if plan.producers == 0 { 0 } else { plan.outstanding };
    let producers = (0..producers).map(|_| Publisher(publishing.clone())).collect();
    let mut workers = Vec::new();
    if plan.workers > 0 {
        let in_flight = plan.outstanding * plan.batch;
        let config = consumer::pull::Config {
            durable_name: Some(NAME.to_owned()),
            ack_policy: consumer::AckPolicy::Explicit,
            max_ack_pending: in_flight as i64,
            ..consumer::pull::Config::default()
        };
        // One of an earlier case had other limits.
        let _ = stream.delete_consumer(NAME).await;
        let consumer = stream.create_consumer(config).await?;
        for _ in 0..plan.outstanding {
            let messages = consumer.stream().max_messages_per_batch(plan.batch as usize).messages().await?;
            workers.push(Puller { messages });
        }
    }
    drive(plan, producers, workers).await
}

/// The stream, once its group has a leader.
async fn until_ready(context: &Context, nodes: usize) -> Result<stream::Stream> {
    let start = tokio::time::Instant::now();
    loop {
        let config = stream::Config {
            name: NAME.to_owned(),
            subjects: vec![NAME.to_owned()],
            num_replicas: nodes,
            retention: stream::RetentionPolicy::WorkQueue,
            storage: stream::StorageType::File,
            ..stream::Config::default()
        };
        match context.get_or_create_stream(config).await {
            Ok(stream) => return Ok(stream),
            Err(error) if start.elapsed() > READY_PATIENCE => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(250)).await,
        }
    }
}

struct Publisher(Context);

impl Producer for Publisher {
    async fn enqueue(&mut self, payload: &[u8], count: u64) -> Result<()> {
        let payload = PublishMessage::build().payload(payload.to_vec().into());
        let mut acks = Vec::new();
        for _ in 0..count {
            acks.push(self.0.send_publish(NAME, payload.clone()).await?.into_future());
        }
        try_join_all(acks).await?;
        Ok(())
    }
}

struct Puller {
    messages: consumer::pull::Stream,
}

impl Worker for Puller {
    type Job = Message;

    async fn take(&mut self, max: u64) -> Result<Vec<(Message, Vec<u8>)>> {
        let mut taken = Vec::new();
        let mut next = self.messages.next().await;
        while let Some(message) = next {
            let message = message?;
            let payload = message.payload.to_vec();
            taken.push((message, payload));
            if taken.len() as u64 == max {
                break;
            }
            // What is there already.
            next = futures::FutureExt::now_or_never(self.messages.next()).flatten();
        }
        Ok(taken)
    }

    async fn ack(&mut self, jobs: Vec<Message>) -> Result<()> {
        let acks = jobs.iter().map(Message::double_ack);
        try_join_all(acks).await.map_err(|error| anyhow!("{error}"))?;
        Ok(())
    }
}
