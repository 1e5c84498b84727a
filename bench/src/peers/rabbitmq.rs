//! RabbitMQ: a quorum queue, publisher confirms, a consumer that acks. The server does not answer acks.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use futures::future::try_join_all;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};

use super::{Producer, Worker, drive};
use crate::load::{Plan, Summary};

const QUEUE: &str = "bench";
/// A connection that is closed for no fault.
const CLOSE_OK: u16 = 200;
/// A message that is written to the disk.
const PERSISTENT: u8 = 2;

/// One connection on each side, with all messages in flight on it.
pub(crate) async fn run(address: SocketAddr, plan: Plan) -> Result<Summary> {
    let publishing = connect(address).await?;
    let consuming = connect(address).await?;
    let channel = publishing.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    channel.queue_declare(QUEUE.into(), QueueDeclareOptions::durable(), arguments).await?;
    let producers = if plan.producers == 0 { 0 } else { plan.outstanding };
    let producers = (0..producers).map(|_| Publisher(channel.clone())).collect();
    let mut workers = Vec::new();
    if plan.workers > 0 {
        let channel = consuming.create_channel().await?;
        let in_flight = u16::try_from(plan.outstanding * plan.batch).unwrap_or(u16::MAX);
        channel.basic_qos(in_flight, BasicQosOptions::default()).await?;
        let consumer = channel
            .basic_consume(QUEUE.into(), QUEUE.into(), BasicConsumeOptions::default(), FieldTable::default())
            .await?;
        workers.push(Taker { channel, consumer });
    }
    let summary = drive(plan, producers, workers).await;
    // A consumer that lives on would take the tasks of the next case.
    consuming.close(CLOSE_OK, "the case is over".into()).await?;
    publishing.close(CLOSE_OK, "the case is over".into()).await?;
    summary
}

pub(crate) async fn connect(address: SocketAddr) -> Result<Connection> {
    Ok(Connection::connect(&format!("amqp://{address}/%2f"), ConnectionProperties::default()).await?)
}

struct Publisher(Channel);

impl Producer for Publisher {
    async fn enqueue(&mut self, payload: &[u8], count: u64) -> Result<()> {
        let mut confirms = Vec::new();
        for _ in 0..count {
            let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
            let options = BasicPublishOptions::default();
            let publish = self.0.basic_publish("".into(), QUEUE.into(), options, payload, properties);
            confirms.push(publish.await?);
        }
        for confirm in try_join_all(confirms).await? {
            ensure!(confirm.is_ack(), "RabbitMQ refused a message: {confirm:?}");
        }
        Ok(())
    }
}

struct Taker {
    channel: Channel,
    consumer: Consumer,
}

impl Worker for Taker {
    type Job = u64;

    async fn take(&mut self, max: u64) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut taken = Vec::new();
        let mut next = self.consumer.next().await;
        while let Some(delivery) = next {
            let delivery = delivery?;
            taken.push((delivery.delivery_tag, delivery.data));
            if taken.len() as u64 == max {
                break;
            }
            // What is there already.
            next = futures::FutureExt::now_or_never(self.consumer.next()).flatten();
        }
        Ok(taken)
    }

    async fn ack(&mut self, jobs: Vec<u64>) -> Result<()> {
        // One ack for all up to the last: there is one worker on this channel.
        let last = jobs.into_iter().max().context("nothing to ack")?;
        self.channel.basic_ack(last, BasicAckOptions { multiple: true }).await?;
        Ok(())
    }
}
